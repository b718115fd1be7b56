"""Machine check, `oxillama doctor`: tier, threads, memory, limits, a text by the shipped model, and what to change."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import oxillama
import oxillama.kernels
from oxillama.cli import machine
from oxillama.cli.contention import load_average
from oxillama.errors import ConfigError, OxiLlamaError
from oxillama.kernels import _table
from oxillama.kernels._cores import _online, cgroup_quota, default_threads, throttled
from oxillama.offload import MemoryPressureProbe

__all__ = ["Finding", "doctor"]

GIB = 1 << 30
TEXT, TOKENS = "Once upon a time", 16
OWN, FOREIGN = "oxillama-cpu", "oxillama"  # distributions: ours, and another project's, which has the folder's name
# Above these, something is worth a change. A tenth of the periods stopped is a token rate that stutters; a stall of a
# tenth of the last ten seconds is a machine that swaps or reads its programs again.
MOST_THROTTLED, MOST_STALLED = 0.1, 0.1
LEAST_AVAILABLE = GIB
MOST_SECONDS = 60
MOST_SPINS = {"GOMP_SPINCOUNT": 1000, "KMP_BLOCKTIME": 0}  # before an idle thread sleeps: some ten microseconds
# Where a limit hurts: name -> (the least that does no harm, what it bounds, its flag of the shell's ulimit).
HARMLESS: dict[str, tuple[int, str, str]] = {
    "RLIMIT_AS": (1 << 46, "address space, of which a mapped model and the KV cache reserve more than they use", "-v"),
    "RLIMIT_DATA": (1 << 46, "memory of the process", "-d"),
    "RLIMIT_CPU": (1 << 31, "seconds of CPU time, after which the process is killed", "-t"),
    "RLIMIT_FSIZE": (1 << 40, "size of a file that is written: snapshots, models from `oxillama quantize`", "-f"),
    "RLIMIT_NOFILE": (1024, "open files, of which `oxillama serve` needs one for each connection", "-n"),
    "RLIMIT_NPROC": (512, "processes and threads of this user", "-u"),
}


@dataclass(frozen=True)
class Finding:
    """Result of a check. change: what to do about it, empty if nothing; broken: oxillama doesn't work here.

    values: the same as numbers and texts, for `--json`.
    """

    topic: str
    said: str
    change: str = ""
    broken: bool = False
    values: dict[str, Any] = field(default_factory=dict)


def doctor(args: argparse.Namespace) -> int:
    """Prints what was found. Returns 0, 1 if something should change, 2 if the installation doesn't work."""
    if not 0 <= args.seconds <= MOST_SECONDS:
        raise ConfigError(f"--seconds must be from 0 to {MOST_SECONDS}, not {args.seconds}")
    for name in args.imports:
        _import(name)
    found = []
    for finding in findings(args.seconds):
        found.append(finding)
        if not args.json:
            print("\n".join(lines(finding)), flush=True)
    status = 2 if any(f.broken for f in found) else 1 if any(f.change for f in found) else 0
    if args.json:
        print(json.dumps({"status": status, "findings": [asdict(f) for f in found]}))
    return status


def _import(name: str) -> None:
    """Imports a module. Raises ConfigError whatever goes wrong in it."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"--import must be the name of a module, not {name!r}")
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"--import {name}: {said}") from error


def findings(seconds: float, root: str | Path = "/") -> Iterator[Finding]:
    """All checks, in their order; `root` is the folder that holds proc and sys."""
    yield installation()
    yield answer()
    yield cpu(root)
    yield openmp(root)
    yield threads(root)
    yield load(root)
    yield huge_pages(root)
    yield memory(root)
    yield resource_limits(list(machine.limits()))
    if seconds:
        yield bandwidth(seconds, root)


def lines(finding: Finding) -> list[str]:
    """A topic, marked by whether it is well, and below it what to change."""
    mark = "FAILS" if finding.broken else "change" if finding.change else "ok"
    first = f"{mark:7}{finding.topic:14}{finding.said}"
    return [first, f"{'':21}-> {finding.change}"] if finding.change else [first]


def installation() -> Finding:
    """Versions, the folder of the package, and whether a distribution of another project fills it, too."""
    version, where = oxillama.__version__, str(Path(oxillama.__file__).parent)
    said = f"oxillama {version}, Python {platform.python_version()}, {platform.platform()}; {where}"
    own, other = distribution_version(OWN), distribution_version(FOREIGN)
    values = {"version": version, "python": sys.version, "platform": platform.platform(), "folder": where}
    found: dict[str, Any] = values | {"distribution": own, "other_distribution": other}
    change = ""
    if other is not None:
        said += f"; beside the distribution {FOREIGN} {other}, which writes into the same folder"
        change = f"pip uninstall {FOREIGN} {OWN}, and install this one again: {FOREIGN} is another project's name"
    return Finding("installation", said, change, values=found)


def distribution_version(name: str) -> str | None:
    """Version of an installed distribution; None if it isn't installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def answer() -> Finding:
    """A text by the shipped model, which must be the same with one thread as with all."""
    greedy = oxillama.SamplerConfig.greedy()
    texts = []
    try:
        for n in (1, None):
            with oxillama.load(num_threads=n) as engine:
                texts.append(engine.generate(TEXT, max_tokens=TOKENS, sampler=greedy).text)
    except (OxiLlamaError, OSError, MemoryError) as error:
        change = "install it again; if that doesn't help, report this with the output of `oxillama doctor --json`"
        return Finding("model", f"the shipped model fails: {error}", change, broken=True)
    if texts[0] != texts[1]:
        change = "report this with the output of `oxillama doctor --json`"
        said = f"the shipped model gives {texts[0]!r} with one thread and {texts[1]!r} with all"
        return Finding("model", said, change, broken=True)
    return Finding("model", f"the shipped model writes {texts[0]!r}", values={"text": texts[0]})


def cpu(root: str | Path = "/") -> Finding:
    """Tier in use, and whether the CPU has a better one."""
    config = oxillama.kernels.config()
    detected, used, features = config["tier_detected"], config["tier_in_use"], machine.cpu_features(root)
    name = machine.cpu_name(root) or str(config["machine"])
    said = f"{name}: kernels of the tier {used} ({', '.join(features) or 'features unknown'})"
    values = {key: config[key] for key in ("tiers_compiled", "tier_detected", "tier_in_use", "compiler")}
    change = ""
    if used != detected:
        change = f"unset OXILLAMA_TIER: this CPU can run {detected}"
    elif used == "scalar":
        change = "use a CPU with AVX2, or a 64-bit ARM; the scalar tier is for others, and slow"
    elif used != "amx" and {"amx_tile", "amx_int8", "amx_bf16"} <= set(features):
        change = "build with binutils 2.35 or clang 12, or later ones: the assembler doesn't know the CPU's AMX"
        if "amx" in _table.compiled_tiers():
            change = (
                "let the process use the CPU's AMX, which Linux refuses: before 5.16, in a sandbox that stops "
                "arch_prctl, or because a thread has a signal stack that is too small for tiles"
            )
    return Finding("cpu", said, change, values=values | {"name": name, "features": features})


def openmp(root: str | Path = "/") -> Finding:
    """OpenMP libraries in this process, and how long their idle threads spin."""
    libraries, spins = machine.openmp_libraries(root), str(oxillama.kernels.config()["idle_spins"])
    said = f"{', '.join(Path(path).name for path in libraries) or 'no library found'}; idle spins {spins}"
    change = ""
    variable, _, value = spins.partition("=")
    short = value.lower() == "passive" or (value.isdecimal() and int(value) <= MOST_SPINS.get(variable, 0))
    if value and not short:
        change = f"unset {variable}, unless every core is idle otherwise: waiting threads burn cores"
    elif len(libraries) > 1:
        change = (
            "set OMP_WAIT_POLICY=passive before Python starts if libraries compute in turns: after each region the "
            "threads of the others spin for milliseconds on the cores of the next"
        )
        change = "" if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive" else change
    return Finding("openmp", said, change, values={"libraries": libraries, "idle_spins": spins})


def threads(root: str | Path = "/") -> Finding:
    """The default number of threads, what decided it, and whether a quota stops them."""
    found, stopped = default_threads(root), throttled(root)
    said = str(found) + (f"; stopped by the CPU quota in {stopped:.0%} of its periods" if stopped else "")
    change = ""
    if found.ignored:
        change = f"set {found.ignored[0].partition('=')[0]} to a whole number from 1, or unset it"
    elif stopped > MOST_THROTTLED:
        change = "raise the CPU quota of the container, or give --threads less than it has cores"
    values = {"threads": found.n, "cores": found.cores, "reason": found.reason, "throttled": stopped}
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return Finding("threads", said, change, values=values | {"ignored": found.ignored, "affinity": affinity})


def load(root: str | Path = "/") -> Finding:
    """Whether other programs leave the threads their cores."""
    found, busy = default_threads(root), load_average(root)
    if busy is None:
        return Finding("load", "unknown")
    # The load counts hardware threads, of which a core may have two, and this process's own of the last minute: it is
    # no reason to give away more than half.
    hardware = max(found.cores, len(_online(Path(root))))
    free = max((found.n + 1) // 2, int(found.cores * (1 - busy / hardware) + 0.5))
    said = f"{busy:.1f} threads of all programs wanted to run in the last minute, on {hardware} hardware threads"
    quota = cgroup_quota(root)
    said += "" if quota is None else f", of which the control groups allow {quota:g}"
    change = ""
    if free < found.n:
        change = f"give --threads {free} while other programs run: a region waits for its slowest thread"
    elif busy > hardware:
        change = "end other programs: threads wait for their turn, and speeds that are measured now are too low"
    return Finding("load", said, change, values={"load": busy, "hardware": hardware, "quota": quota})


def huge_pages(root: str | Path = "/") -> Finding:
    """Whether large arrays get pages of 2 MiB."""
    mode = machine.huge_pages(root)
    said = "unknown" if mode is None else f"transparent huge pages: {mode}"
    change = ""
    if mode == "never":
        change = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): weights need fewer page faults"
    return Finding("huge pages", said, change, values={"transparent": mode})


def memory(root: str | Path = "/") -> Finding:
    """Memory that is there, with the limits of control groups, and whether programs wait for it."""
    reading = MemoryPressureProbe(root).read()
    if reading.total is None or reading.available is None:
        return Finding("memory", "unknown", values=asdict(reading))
    said = f"{reading.available / GIB:.1f} of {reading.total / GIB:.1f} GiB are available"
    change = ""
    if reading.stalled is not None and reading.stalled > MOST_STALLED:
        change = "give --offload, or a smaller model: programs wait for memory"
    elif reading.available < LEAST_AVAILABLE:
        change = (
            "end other programs or raise the container's limit; or give --offload, --context-size or --kv-type (q8_0, "
            "q4_0)"
        )
    return Finding("memory", said, change, values=asdict(reading))


def resource_limits(found: Sequence[machine.Limit]) -> Finding:
    """Resource limits that are low enough to be met."""
    low = [limit for limit in found if limit.soft is not None and limit.soft < HARMLESS[limit.name][0]]
    change = "; ".join(_raised(limit, *HARMLESS[limit.name]) for limit in low)
    said = "; ".join(f"{limit.name} is {limit.soft:,} ({HARMLESS[limit.name][1]})" for limit in low)
    return Finding("limits", said or "none is low", change, values={limit.name: limit.soft for limit in found})


def _raised(limit: machine.Limit, least: int, _: str, flag: str) -> str:
    """The command of a shell, if the hard limit allows more; else where that one is set."""
    if limit.hard is None or limit.hard >= least:
        return f"ulimit -S {flag} hard"
    unit = f"Limit{limit.name.removeprefix('RLIMIT_')}="
    return f"raise {limit.name}'s hard limit: /etc/security/limits.conf, {unit} of systemd, or --ulimit of Docker"


def bandwidth(seconds: float, root: str | Path = "/") -> Finding:
    """Checks how fast weights can be read, which bounds decoding, and whether the figures are of the machine alone."""
    found = machine.read_speed(seconds, default_threads(root).n, MemoryPressureProbe(root).read().available, root)
    if found is None:
        return Finding("bandwidth", "not measured: too little memory is available")
    said = (
        f"{found.one / 1e9:.1f} GB/s with one thread, {found.all / 1e9:.1f} with {found.threads}: with 1 GB of weights "
        f"at most {max(found.one, found.all) / 1e9:.1f} tokens/s for one sequence"
    )
    taken, change = found.contention.said, ""
    if taken:
        medians = f"{found.one_median / 1e9:.1f} and {found.all_median / 1e9:.1f}"
        said = f"not of the machine alone, since {taken}: {said}; medians {medians} GB/s"
        change = (
            "measure again when nothing else runs: these figures say what was left, and not what the machine can do"
        )
    return Finding("bandwidth", said, change, values={**asdict(found), "trusted": not taken})
