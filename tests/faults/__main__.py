"""python -m tests.faults [PART...]: the whole matrix, or parts of it, as a table; exits with 1 if anything was lost.

Parts: calls, limits, signals, interrupts, raised, bits, forks, stores, cut, tests. All of them take about an hour and a
half on two cores.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.faults import cut, damage, forks, interrupts, raised, served, signals, stores
from tests.faults.injected import Stage, faults_of, run, staged
from tests.faults.limits import ROOT, can_mount, file_limit, files_of, full_disk, read_only, run_module, shim, sizes
from tests.faults.raised import quietly
from tests.faults.scenes import SAVES, SCENES
from tests.faults.tracing import can_trace

# What happened, and what was lost by it.
Row = tuple[str, str, list[str]]

# Tests of more: blocks that are missing or swapped, other models, formats, versions and adapters, models' files that
# change while they are in use.
BESIDE = ("snapshot/test_damage.py", "snapshot/test_files.py", "snapshot/test_adapters.py", "snapshot/test_version1.py",
          "snapshot/test_syscalls.py", "offload/test_faults.py", "gguf/test_mapping.py",
          "core/test_interrupt.py")  # fmt: skip


@cache
def stage_of(name: str) -> tuple[Stage, Path]:
    folder = Path(tempfile.mkdtemp(dir=top))
    return staged(name, folder), folder


def calls() -> Iterator[Row]:
    if not can_trace():
        yield "skipped: no process can be traced here", "", []
        return
    for name in SCENES:
        stage, folder = stage_of(name)
        for fault in faults_of(stage):
            yield name, f"{fault.call.name} {fault.how}", [f"{fault}: {loss}" for loss in run(stage, folder, fault)]


def limits() -> Iterator[Row]:
    mounts = can_mount()
    for name in SAVES:
        stage, folder = stage_of(name)
        there = sum(len(data or b"") + 4096 for data in stage.old.values())
        for n in sizes(stage, 40):
            yield name, "RLIMIT_FSIZE", file_limit(stage, folder, n, deadly=False)
            yield name, "SIGXFSZ", file_limit(stage, folder, n, deadly=True)
            if mounts:
                yield name, "full disk", full_disk(stage, folder, there + n) or []
        yield name, "read-only folder", read_only(stage, folder)
    if not mounts:
        yield "skipped: no disk can be mounted here", "full disk", []
    library = shim(Path(top))
    if library is None:
        yield "skipped: no compiler", "short writes", []
    else:
        same = files_of(list(SCENES), library) == files_of(list(SCENES), None)
        yield "all", "short reads and writes, EINTR", [] if same else ["other files, or other results"]


def signalled() -> Iterator[Row]:
    for i, name in enumerate(SCENES):
        stage, folder = stage_of(name)
        lines = signals.worth(signals.places_of(stage, folder))
        for kind in signals.HANDLERS:
            step = 1 if kind == "Ctrl-C" else 7
            for line in lines[i % step :: step]:
                yield name, kind, [f"line {line}: {loss}" for loss in signals.at_line(stage, folder, line, kind)]
        for kind in ("once", "storm"):
            for seed in range(50):
                yield name, f"SIGALRM, {kind}", signals.at_random(stage, folder, seed, kind)


def interrupted() -> Iterator[Row]:
    from tests.threads.stress import engines

    with quietly():
        for kind, engine, calls_of in engines(Path(tempfile.mkdtemp(dir=top))):
            for name, call in calls_of.items():
                for role in interrupts.ROLES:
                    n, losses = interrupts.sweep(engine, name, call, role, 500, tidy=engine.clear_loras)
                    yield kind, f"{n} times Ctrl-C, {name}, {role}", losses


def raised_everywhere() -> Iterator[Row]:
    for name in served.CALLS:
        for layers in served.KINDS:
            for i, error in enumerate(raised.KINDS):
                n, losses = raised.sweep(served.scene(name, layers), error, 1 + i, len(raised.KINDS))
                yield f"{name}, {layers}", f"{n} calls raise {error.__name__}", losses


def bits() -> Iterator[Row]:
    for name in SAVES:
        file = damage.file_of(name, Path(tempfile.mkdtemp(dir=top)))
        for losses in damage.cut(file):
            yield name, "cut at each boundary", losses
        for losses in damage.flipped(file):
            yield name, "each bit of header and description", losses


def forked() -> Iterator[Row]:
    for kind in forks.KINDS:
        yield kind, "forked for 20 s", run_module("tests.faults.forks", kind, "20")


def stored() -> Iterator[Row]:
    for seed in range(3):
        folder = Path(tempfile.mkdtemp(dir=top))
        yield f"storm {seed}", "writers killed, garbage collected", stores.storm(folder, 60, seed=seed)


def cut_off() -> Iterator[Row]:
    for name in cut.SCENES:
        yield name, "cut off before every seventh line", run_module("tests.faults.cut", name, "7")


def tests() -> Iterator[Row]:
    for name in BESIDE:
        status = pytest.main(["-q", "-m", "", str(ROOT / "tests" / name)])
        yield name, "tests", [f"exit status {status}"] * bool(status)


PARTS = {
    "calls": calls,
    "limits": limits,
    "signals": signalled,
    "interrupts": interrupted,
    "raised": raised_everywhere,
    "bits": bits,
    "forks": forked,
    "stores": stored,
    "cut": cut_off,
    "tests": tests,
}


def main(names: list[str]) -> int:
    unknown = set(names) - set(PARTS)
    if unknown:
        print(f"{', '.join(sorted(unknown))}: no part; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    n_lost = 0
    print(f"{'part':8} {'scene':28} {'faults':>7} {'lost':>5} {'seconds':>8}")
    for name in names or PARTS:
        counts, lost, began = Counter[str](), Counter[str](), time.monotonic()
        rows = PARTS[name]()
        scene = None
        for found, what, losses in rows:
            if scene not in (None, found):
                report(name, str(scene), counts, lost, began)
                counts, lost, began = Counter(), Counter(), time.monotonic()
            scene = found
            counts[what] += 1
            lost[what] += bool(losses)
            n_lost += bool(losses)
            for loss in losses:
                print(f"  LOST {found}, {what}: {loss}", flush=True)
        report(name, str(scene), counts, lost, began)
    print("nothing was lost" if not n_lost else f"{n_lost} faults lost something")
    return int(n_lost > 0)


def report(part: str, scene: str, counts: Counter[str], lost: Counter[str], began: float) -> None:
    seconds = time.monotonic() - began
    print(f"{part:8} {scene:28} {counts.total():7} {lost.total():5} {seconds:8.1f}", flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # newer Pythons warn of what is tested here
    with tempfile.TemporaryDirectory() as top:
        sys.exit(main(sys.argv[1:]))
