"""The default number of compute threads: cores, affinity, CPU quotas of cgroups, and OpenMP's variables.

A quota of one and a half cores gives one thread, not two: every region ends in a barrier, and once the quota of a
period (100 ms) is used up the kernel stops the threads one by one until the next period begins, so that those that
still run wait at the barrier for those that were stopped. More threads than the quota has cores therefore give a token
rate that stutters. `num_threads=2` still has them where only the sum counts.
"""

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = [
    "DefaultThreads",
    "cgroup_quota",
    "default_num_threads",
    "default_threads",
    "throttled",
    "throttled_periods",
]

_VARIABLES = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT")


@dataclass(frozen=True)
class DefaultThreads:
    """The default number of compute threads, and the limit that decided it.

    cores: of the machine; hardware threads that share a core count once. reason: the lowest limit, in words. ignored:
    environment variables whose values are no numbers of threads, each with its value.
    """

    n: int
    cores: int
    reason: str
    ignored: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.n} of {self.cores} core{'s' * (self.cores != 1)}: {self.reason}"
        return said + "".join(f"; {variable} is no number of threads and is ignored" for variable in self.ignored)


def default_num_threads() -> int:
    """The default on this machine, for this process, now. Logs a warning for a variable that is ignored."""
    found = default_threads()
    for variable in found.ignored:
        logging.getLogger("oxillama").warning(
            "%s is no number of threads and is ignored: set it to a whole number from 1, or give num_threads", variable
        )
    return found.n


def default_threads(
    root: str | os.PathLike[str] = "/", env: Mapping[str, str] | None = None, cpus: Collection[int] | None = None
) -> DefaultThreads:
    """The least of the cores that the process may run on, its CPU quotas, OMP_NUM_THREADS and OMP_THREAD_LIMIT.

    root: the folder that holds proc and sys. env: the environment, by default that of the process. cpus: ids of the
    CPUs that the process may run on, by default its affinity.
    """
    files, env = Path(root), os.environ if env is None else env
    online = _online(files)
    if cpus is None:
        cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else online
    cores = _n_cores(files, online | set(cpus))
    limits = [(cores, "all of them"), (_n_cores(files, cpus), "CPU affinity")]
    for file, quota in _quotas(files):
        limits.append((int(quota), f"cgroup quota of {round(quota * 100)} % ({file})"))
    ignored = []
    for name in _VARIABLES:
        value = env.get(name, "").strip()
        # OMP_NUM_THREADS may be a list, of which the first is for the outermost level.
        n = value.partition(",")[0].strip() if name == "OMP_NUM_THREADS" else value
        if re.fullmatch(r"[+]?[0-9]{1,9}", n, re.ASCII) and int(n) > 0:
            limits.append((int(n), f"{name}={value}"))
        elif value:
            ignored.append(f"{name}={value!r:.80}")
    n_threads, reason = min(limits, key=lambda limit: limit[0])
    return DefaultThreads(max(1, n_threads), cores, reason, tuple(ignored))


def throttled(root: str | os.PathLike[str] = "/") -> float:
    """The part of their periods (100 ms, most often) in which CPU quotas stopped the process, 0 to 1.

    Of the process's cgroup, or of one above it, in which it is largest, since the group was made.
    """
    return max((min(1.0, stopped / periods) for periods, stopped in _periods(Path(root)) if periods), default=0.0)


def throttled_periods(root: str | os.PathLike[str] = "/") -> int:
    """Periods in which a CPU quota stopped the process, or others of a cgroup that it is in, since that was made."""
    return max((stopped for _, stopped in _periods(Path(root))), default=0)


def cgroup_quota(root: str | os.PathLike[str] = "/") -> float | None:
    """CPUs that the cgroups allow; None without a quota."""
    return min((quota for _, quota in _quotas(Path(root))), default=None)


def _periods(root: Path) -> Iterator[tuple[int, int]]:
    """(periods, those in which a quota stopped it) of the cgroups that the process is in, and of all above them."""
    for mount, path, _ in _cgroups(root):
        for folder in (path, *path.parents):
            inside = str(mount / folder.relative_to("/"))
            text = _read(root / inside.lstrip("/") / "cpu.stat")
            counts = dict(re.findall(r"^(nr_periods|nr_throttled) ([0-9]{1,18})$", text, re.MULTILINE))
            yield int(counts.get("nr_periods", 0)), int(counts.get("nr_throttled", 0))


def _online(root: Path) -> set[int]:
    """Ids of the CPUs that run."""
    text = _read(root / "sys/devices/system/cpu/online")
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return set(range(os.cpu_count() or 1))
    ranges = [part.split("-") for part in text.split(",")]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def _n_cores(root: Path, cpus: Collection[int]) -> int:
    """Cores that these CPUs belong to."""
    folder = root / "sys/devices/system/cpu"
    return len({_read(folder / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def _quotas(root: Path) -> Iterator[tuple[str, float]]:
    """(file, quota in CPUs) of the cgroups that the process is in, and of all above them."""
    for mount, path, version in _cgroups(root):
        for folder in (path, *path.parents):
            inside = str(mount / folder.relative_to("/"))
            place = root / inside.lstrip("/")
            if version == 2:
                numbers, file = _read(place / "cpu.max").split(), "cpu.max"
            else:
                numbers = [_read(place / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
                file = "cpu.cfs_quota_us"
            if len(numbers) == 2 and all(
                re.fullmatch(r"0*[1-9][0-9]{0,17}", n) for n in numbers
            ):  # not "max", and not -1
                yield f"{inside}/{file}", int(numbers[0]) / int(numbers[1])


def _cgroups(root: Path) -> Iterator[tuple[PurePosixPath, PurePosixPath, int]]:
    """(where a hierarchy that can limit CPU time is mounted, the process's group below that, version)."""
    groups: dict[str, str] = {}  # controller, "" for version 2 -> path in the hierarchy
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        groups |= dict.fromkeys(controllers.split(","), group)
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, options = left.split(), right.split()
        if len(fields) < 5 or len(options) < 3 or options[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if options[0] == "cgroup2" else 1
        if version == 1 and "cpu" not in options[2].split(","):
            continue
        path = groups.get("" if version == 2 else "cpu")
        if path is not None:
            yield PurePosixPath(_unescaped(fields[4])), _below(path, _unescaped(fields[3])), version


def _below(path: str, mounted: str) -> PurePosixPath:
    """A group's path as seen from the mount of a part of its hierarchy; the mount itself for one that is outside."""
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_absolute() or not group.is_relative_to(mounted):
        return PurePosixPath("/")
    return PurePosixPath("/") / group.relative_to(mounted)


def _unescaped(field: str) -> str:
    """A path of mountinfo, where octal codes stand for blanks."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field)


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""
