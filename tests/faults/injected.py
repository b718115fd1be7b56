"""System calls that fail, one after another: every call that a scene makes, with every error."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.children import Child, acting
from tests.faults.scenes import SAVES, SCENES, Scene
from tests.faults.tracing import Call, calls_of, tracing
from tests.faults.trees import Tree, losses, read_tree

KILL = "killed"
MOST = 40  # occurrences of a call that fail, where nothing is saved: a step reads all weights in the same way
ERRORS = ("EIO", "EINTR", "ENOSPC", "EDQUOT")
# Calls that never need room on a disk.
ROOMLESS = """
newfstatat fstat stat lstat statx lseek read pread64 preadv preadv2 getdents64 close ioctl fcntl getrandom flock
readlink readlinkat getcwd access faccessat faccessat2 fadvise64
"""


@dataclass
class Stage:
    """A scene with what it finds and what it should leave. calls: that it makes."""

    name: str
    scene: Scene
    old: Tree
    new: Tree
    proof: str
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class Fault:
    """how: the name of an error, or `KILL`. lasting: from then on, it always fails."""

    call: Call
    how: str
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.call.name} {self.call.n} {self.how}{' and on' if self.lasting else ''}"

    @property
    def injected(self) -> str:
        what = "signal=KILL" if self.how == KILL else f"error={self.how}"
        return f"inject={self.call.name}:{what}:when={self.call.n}{'+' if self.lasting else ''}"


def staged(name: str, folder: Path, make: Callable[[Path], Scene] | None = None) -> Stage:
    """Prepares a scene, and acts it once without a fault."""
    (folder / "old").mkdir(parents=True)
    scene = (make or SCENES[name])(folder / "old")
    old = read_tree(folder / "old")
    with placed(folder / "old") as place, acting(scene, place) as child:
        trace = folder / "trace"
        with tracing(child.pid, [], trace) as tracer:
            assert tracer is not None, "no process can be traced here"
            assert child.begin() == {"error": None, "typed": True}
        new = read_tree(place)
        done = child.go_on()
        assert done is not None
        assert (done["error"], done["files"]) == (None, 0)
        assert read_tree(place) == new, f"{name}: acting again gives other files"
    return Stage(name, scene, old, new, done["proof"], calls_of(trace))


class placed:
    """A copy of a folder, for one fault."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Path:
        self._place = Path(tempfile.mkdtemp(dir=self._folder.parent))
        shutil.copytree(self._folder, self._place, dirs_exist_ok=True)
        return self._place

    def __exit__(self, *ignored: object) -> None:
        shutil.rmtree(self._place)


def faults_of(stage: Stage, errors: Iterable[str] = (*ERRORS, KILL)) -> Iterator[Fault]:
    for call in stage.calls:
        if stage.name not in SAVES and call.n > MOST:
            continue
        for how in errors:
            if how not in ERRORS[2:] or call.name not in ROOMLESS.split():
                yield Fault(call, how)
    for name in dict.fromkeys(call.name for call in stage.calls):  # a disk that stays full, or broken
        first = next(call for call in stage.calls if call.name == name)
        for how in ("EIO", "ENOSPC"):
            if how in errors:
                yield Fault(first, how, lasting=True)


def run(stage: Stage, folder: Path, fault: Fault) -> list[str]:
    """What was lost by a fault: nothing, if all is well."""
    with placed(folder / "old") as place, acting(stage.scene, place) as child:
        options = ["-e", f"trace={fault.call.name}", "-e", fault.injected]
        with tracing(child.pid, options):
            outcome = child.begin()
        found = judged(stage, place, child, outcome, may_die=fault.how == KILL)
        # What strace lets fail isn't done: of a file that wasn't closed, nothing else is to be expected.
        return [loss for loss in found if fault.call.name != "close" or "stay open" not in loss]


def judged(stage: Stage, place: Path, child: Child, outcome: dict[str, object] | None, *, may_die: bool) -> list[str]:
    """What is not as it should be after a fault; the child, or another one, acts again and must leave nothing wrong."""
    now = read_tree(place)
    if outcome is None:
        found = losses(stage.old, stage.new, now, alive=False, error=None)
        if not may_die:
            found.append("the process died")
        with acting(stage.scene, place) as child:
            return found + _again(stage, place, child, child.begin())
    error = outcome["error"]
    assert error is None or isinstance(error, str)
    found = losses(stage.old, stage.new, now, alive=True, error=error)
    if not outcome["typed"]:
        found.append(f"not one of our errors: {error}")
    return found + _again(stage, place, child, outcome)


def _again(stage: Stage, place: Path, child: Child, outcome: dict[str, object] | None) -> list[str]:
    done = child.go_on()
    if done is None:
        return [f"it died afterwards: {outcome}"]
    found = []
    if done["error"] is not None:
        found.append(f"afterwards: {done['error']}")
    if done.get("files"):
        found.append(f"{done['files']} files stay open")
    if done.get("proof") != stage.proof:
        found.append(f"the engine gives something else: {done.get('proof')!s:.200}")
    if read_tree(place) != stage.new:
        found.append(f"afterwards: {losses(stage.new, stage.new, read_tree(place), alive=True, error=None)}")
    return found
