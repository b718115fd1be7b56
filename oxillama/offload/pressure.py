"""Memory pressure of the machine, read from Linux; each source may be missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryPressureProbe", "MemoryReading"]

_STALL = re.compile(r"^some avg10=([0-9.]+)", re.MULTILINE)
_MEMINFO = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
MAX_DEPTH = 64  # of a control group; a deeper one is taken to be damage


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory at one moment, in bytes; None where it is unknown.

    total: of the machine, or the limit of this process's control group if that is less. available: memory that can be
    allocated without taking it from other processes: free, or cache of files. stalled: part of the last ten seconds in
    which some process waited for memory, 0 to 1.
    """

    total: int | None
    available: int | None
    stalled: float | None


class MemoryPressureProbe:
    """Reads /proc/meminfo, pressure stall information and the limits of control groups (v2).

    Sources: Linux's Documentation/filesystems/proc.rst, accounting/psi.rst, admin-guide/cgroup-v2.rst. Values that are
    missing, or in another form, count as unknown; nothing is raised.
    """

    def __init__(self, root: str | Path = "/") -> None:
        """`root`: the folder of proc and sys."""
        self._root = Path(root)

    def read(self) -> MemoryReading:
        """A reading now: the least of the values of machine and control groups."""
        meminfo = {name: int(n) << 10 for name, n in _MEMINFO.findall(self._text("proc/meminfo"))}
        totals, spare = [meminfo.get("MemTotal")], [meminfo.get("MemAvailable", meminfo.get("MemFree"))]
        stalls = [self._stalled("proc/pressure/memory")]
        for group in self._groups():
            limit = least([self._number(f"{group}/memory.max"), self._number(f"{group}/memory.high")])
            used = self._number(f"{group}/memory.current")
            totals.append(limit)
            if limit is not None and used is not None:
                spare.append(max(0, limit - used + self._cache(group)))
            stalls.append(self._stalled(f"{group}/memory.pressure"))
        known = [s for s in stalls if s is not None]
        return MemoryReading(least(totals), least(spare), max(known) if known else None)

    def _groups(self) -> Iterator[str]:
        """Folders of this process's control group and its ancestors."""
        for line in self._text("proc/self/cgroup").splitlines():
            if line.startswith("0::/"):
                parts = [p for p in line[4:].split("/") if p not in ("", ".", "..")][:MAX_DEPTH]
                for n in range(len(parts), -1, -1):
                    yield "/".join(["sys/fs/cgroup", *parts[:n]])

    def _cache(self, group: str) -> int:
        """Inactive file cache of a group: file pages not used for a while, which are reclaimed first."""
        for line in self._text(f"{group}/memory.stat").splitlines():
            if line.startswith("inactive_file ") and line[14:].isdigit():
                return int(line[14:])
        return 0

    def _stalled(self, path: str) -> float | None:
        found = _STALL.search(self._text(path))
        try:
            return min(float(found[1]) / 100, 1.0) if found else None
        except ValueError:
            return None

    def _number(self, path: str) -> int | None:
        text = self._text(path).strip()
        return int(text) if text.isdigit() and len(text) < 20 else None  # "max" is no limit

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text("ascii", "replace")
        except (OSError, ValueError):
            return ""


def least(values: list[int | None]) -> int | None:
    return min((v for v in values if v is not None), default=None)
