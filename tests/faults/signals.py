"""Signals while a scene acts: before each line of Python in turn, at random moments, and many of them."""

from __future__ import annotations

import linecache
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.faults.children import Rung, acting
from tests.faults.injected import Stage, judged, placed
from tests.faults.limits import once

PACKAGE = "oxillama/"
# No signal can come before these: Python looks for signals where a function begins or is resumed, after calls and at
# jumps back, and none of that lies between the `finally` they stand in and the call of a function in C.
NEVER = {("core/session.py", "if mine:"), ("core/session.py", "lock.release()")}


def ring(number: int, frame: FrameType | None) -> None:
    raise Rung


def hear(number: int, frame: FrameType | None) -> None:
    """A handler that does something else."""


HANDLERS: dict[str, tuple[signal.Signals, Callable[[int, FrameType | None], object]]] = {
    "Ctrl-C": (signal.SIGINT, signal.default_int_handler),
    "SIGTERM, handler raises": (signal.SIGTERM, ring),
    "SIGALRM, handler raises": (signal.SIGALRM, ring),
}


class Lines:
    """Counts the lines of the package that run, and sends a signal before line n of them.

    number: of the signal; 0: none. told: a file to write into where line n is. places: of the lines, in their order.
    """

    def __init__(self, n: int = 0, number: int = 0, told: Path | None = None) -> None:
        self.n, self.number, self.told = n, number, told
        self.places: list[str] = []

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if PACKAGE not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
            return None
        if event == "line" and not _is_out_of_reach(frame):
            self.places.append(f"{frame.f_code.co_filename.rpartition(PACKAGE)[2]}:{frame.f_lineno}")
            if len(self.places) == self.n:
                if self.told is not None:
                    self.told.write_text(self.places[-1])
                if self.number:
                    signal.raise_signal(self.number)
        return self


def _is_out_of_reach(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    name = path.rpartition(PACKAGE)[2]
    return any(name == file for file, _ in NEVER) and (name, linecache.getline(path, frame.f_lineno).strip()) in NEVER


def places_of(stage: Stage, folder: Path) -> list[str]:
    """The lines of the package that run while it acts, in their order."""
    for _ in range(2):  # the first time, modules are imported and tables are made
        lines = Lines()
        with placed(folder / "old") as place:
            sys.settrace(lines)
            try:
                stage.scene.act(place)
            finally:
                sys.settrace(None)
    return lines.places


def worth(places: list[str]) -> list[int]:
    """Numbers of lines to be interrupted, from 1: the first two and the last time that each of them runs."""
    found: dict[str, list[int]] = {}
    for n, place in enumerate(places, 1):
        found.setdefault(place, []).append(n)
    return sorted({n for numbers in found.values() for n in (*numbers[:2], numbers[-1])})


def at_line(stage: Stage, folder: Path, n: int, kind: str) -> list[str]:
    """A signal before line n."""
    number, handler = HANDLERS[kind]
    told = folder / "line"  # by the child itself: where the line is that has this number depends on what ran before

    def trace() -> Callable[[], object]:
        signal.signal(number, handler)
        sys.settrace(Lines(n, number, told))
        return lambda: sys.settrace(None)

    told.write_text("")
    with placed(folder / "old") as place, acting(once(stage.scene, trace), place) as child:
        outcome = child.begin()
        found = judged(stage, place, child, outcome, may_die=False)
    if told.read_text() and outcome is not None and outcome["error"] is None:
        found.append("nobody hears of it")
    return [f"{loss}, by a signal at {told.read_text()}" for loss in found]


def at_random(stage: Stage, folder: Path, seed: int, kind: str) -> list[str]:
    """SIGALRM at some moment of the first milliseconds, with a handler that raises; or all the time, and it doesn't."""
    moment = random.Random(seed).uniform(1e-5, 0.03)

    def start() -> Callable[[], object]:
        signal.signal(signal.SIGALRM, ring if kind == "once" else hear)
        signal.setitimer(signal.ITIMER_REAL, moment, 0 if kind == "once" else 1e-4)
        return stop

    def stop() -> None:
        signal.signal(signal.SIGALRM, hear)
        signal.setitimer(signal.ITIMER_REAL, 0)

    with placed(folder / "old") as place, acting(once(stage.scene, start), place) as child:
        return judged(stage, place, child, child.begin(), may_die=False)
