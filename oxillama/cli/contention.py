"""Contention: what other programs, a hypervisor and control groups took of the CPUs while something was measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from oxillama.kernels._cores import _online, cgroup_quota, throttled_periods

__all__ = ["Contention", "Watch", "load_average"]

# Above these a figure is not of the machine: a run beside an idle desktop takes a few hundredths.
MOST_OTHERS, MOST_STOLEN, LEAST_SHARE = 0.1, 0.05, 0.7


@dataclass(frozen=True)
class Contention:
    """Load of the machine during a measurement; None where it is unknown.

    load: threads of all programs that wanted to run in the last minute. hardware: hardware threads that this process
    may use. quota: cores that the control groups allow. others: part of these hardware threads' time that other
    programs had. stolen: part that a hypervisor gave to other machines. stopped: periods of a CPU quota in which this
    process was stopped. share: part of the time in which the thread that measured did run.
    """

    load: float | None
    hardware: int
    quota: float | None
    others: float | None
    stolen: float | None
    stopped: int
    share: float

    @property
    def said(self) -> str:
        """Why figures are not of the machine; "" if they may be."""
        found = []
        if self.others is not None and self.others > MOST_OTHERS:
            found.append(f"other programs had {self.others:.0%} of the CPUs")
        if self.stolen is not None and self.stolen > MOST_STOLEN:
            found.append(f"the hypervisor gave {self.stolen:.0%} of them to other machines")
        if self.stopped:
            quota = "" if self.quota is None else f" of {self.quota:g} cores"
            found.append(f"the CPU quota{quota} stopped this process {self.stopped} times")
        if self.share < LEAST_SHARE:
            found.append(f"the thread that measured ran {self.share:.0%} of the time")
        if not found and self.load is not None and self.load > self.hardware:
            found.append("more threads wanted to run in the last minute than there are CPUs")
        load = "" if self.load is None or not found else f" (load {self.load:.1f} on {self.hardware} hardware threads)"
        return ", ".join(found) + load


class Watch:
    """A look at the CPUs' times, from its making on."""

    def __init__(self, root: str | Path = "/") -> None:
        self._root = Path(root)
        self._load = load_average(root)
        self._stopped = throttled_periods(root)
        self._times = _times(self._root)
        self._began, self._own, self._thread = time.perf_counter(), time.process_time(), time.thread_time()

    def end(self) -> Contention:
        """Ends the measurement, in the thread that began it, and returns what other programs took meanwhile."""
        wall = max(time.perf_counter() - self._began, 1e-9)
        own, thread, times = time.process_time() - self._own, time.thread_time() - self._thread, _times(self._root)
        cpus = _allowed(self._root)
        others = stolen = None
        if self._times is not None and times is not None:
            whole, busy, steal = (b - a for a, b in zip(self._times, times, strict=True))
            if whole > 0:
                others, stolen = min(max(busy - own, 0.0) / whole, 1.0), steal / whole
        return Contention(
            load=self._load, hardware=len(cpus) or 1, quota=cgroup_quota(self._root), others=others, stolen=stolen,
            stopped=max(throttled_periods(self._root) - self._stopped, 0), share=min(thread / wall, 1.0),
        )  # fmt: skip


def load_average(root: str | Path = "/") -> float | None:
    """Threads of all programs that wanted to run in the last minute; None if unknown."""
    try:
        return float((Path(root) / "proc/loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _allowed(root: Path) -> set[int]:
    """Hardware threads that this process may use."""
    online = _online(root)
    return online & os.sched_getaffinity(0) or online if hasattr(os, "sched_getaffinity") else online


def _times(root: Path) -> tuple[float, float, float] | None:
    """Seconds that passed on the hardware threads that this process may use, of them busy, and stolen ones."""
    names = {f"cpu{i}" for i in _allowed(root)}
    whole = busy = stolen = 0.0
    try:
        for line in (root / "proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name in names:
                # user nice system idle iowait irq softirq steal; guests' times are in user's
                ticks = [*map(int, fields[:8]), *([0] * (8 - len(fields)))]
                whole, stolen = whole + sum(ticks), stolen + ticks[7]
                busy += sum(ticks) - ticks[3] - ticks[4] - ticks[7]
    except (OSError, ValueError, IndexError):
        return None
    hertz = os.sysconf("SC_CLK_TCK")
    return (whole / hertz, busy / hertz, stolen / hertz) if whole else None
