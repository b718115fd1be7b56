"""Ctrl-C after 2 µs to 10 ms, again and again, in a call that takes the steps itself or waits while another does."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

from tests.fakes import core_of
from tests.faults.raised import in_thread

SHORTEST, LONGEST = 2e-6, 1e-2
ROLES = ("takes the steps", "waits for steps")
EVENT_LOOPS = ("coroutines",)  # which leave files open themselves when they are interrupted as they begin


def press(number: int, frame: FrameType | None) -> None:
    """Ctrl-C, for which an event loop has a handler of its own."""
    signal.raise_signal(signal.SIGINT)


@contextmanager
def timers() -> Iterator[None]:
    """While entered, a timer that rings is Ctrl-C. Errors that come where nothing can be raised, as in a finaliser, are
    not printed."""
    before, hook = signal.signal(signal.SIGALRM, press), sys.unraisablehook
    sys.unraisablehook = lambda *ignored: None
    try:
        yield
    finally:
        disarm()
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook


def disarm() -> None:
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(0)
            return
        except KeyboardInterrupt:
            continue


def interrupted(call: Callable[[], Any], seconds: float) -> tuple[bool, Any]:
    """Whether a timer of so many seconds came before the end of the call, and otherwise what that gave.

    Other errors are passed on.
    """
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            return False, call()
        finally:
            disarm()
    except (KeyboardInterrupt, asyncio.CancelledError):  # the latter of an event loop's own handler
        return True, None


@contextmanager
def steps_elsewhere(engine: Any) -> Iterator[list[str]]:
    """A thread that takes steps all the time; yields what was wrong with its results."""
    wrong: list[str] = []
    stop = threading.Event()

    def text(seed: int) -> list[int]:
        found: list[int] = engine.generate([5, 6, 7], max_tokens=12, seed=seed, ignore_eos=True).token_ids
        return found

    expected = [text(seed) for seed in range(3)]

    def work() -> None:
        i = 0
        while not stop.is_set():
            try:
                if text(i % 3) != expected[i % 3]:
                    wrong.append("another result in the thread that takes the steps")
            except BaseException as error:
                wrong.append(f"in the thread that takes the steps: {error!r}")
            i += 1

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        thread.join(60)
        if thread.is_alive():
            wrong.append("the thread that takes the steps hangs")


def n_files() -> int:
    folder = "/proc/self/fd"
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


def left_over(engine: Any) -> list[str]:
    """What an engine that nothing is asked of still has."""
    for _ in range(3):
        gc.collect()
    engine.reset()
    core, loop = core_of(engine), core_of(engine).loop
    for _ in range(2000):  # its thread may still be at the end of its step
        engine.metrics_snapshot()
        if loop._worker is None and loop._owner is None:
            break
        time.sleep(0.005)
    found = {
        "requests that are open": len(core.open),
        "sequences that wait or run": len(core.scheduler.live) + len(core.scheduler.waiting),
        "guests": len(loop.background_requests),
        "changes that wait": len(loop.mail),
        "threads that sleep": len(loop._sleepers),
        "blocks that are held": len(core.scheduler.blocks.held),
        "a turn that is taken": int(loop._owner is not None),
        "requests in the metrics": core.meter._n_live,
    }
    for pool in (core.pool.blocks, core.pool.windowed, core.pool.slots):
        pool.check_invariants()
        found[f"{pool.noun}s"] = pool.n - pool.n_free - pool.n_kept
    return [f"{n} {what}" for what, n in found.items() if n]


def sweep(
    engine: Any,
    name: str,
    call: Callable[[int], Any],
    role: str,
    times: int,
    *,
    seed: int = 0,
    numbers: int = 2,
    tidy: Callable[[], object] = bool,
) -> tuple[int, list[str]]:
    """So many interrupts of a call: how many came, and what they left behind.

    numbers: of variants of the call. tidy: undoes what an interrupted call leaves to its caller to undo.
    """
    rng = random.Random(f"{seed} {name} {role}")
    expected = [call(i) for i in range(numbers)]
    losses = left_over(engine)
    files, count = n_files(), 0
    with timers(), steps_elsewhere(engine) if role == ROLES[1] else nullcontext([]) as wrong:
        for i in range(times):
            seconds = math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST)))
            try:
                came, found = interrupted(lambda i=i: call(i % numbers), seconds)
            except BaseException as error:
                losses.append(f"{type(error).__name__}: {error}, after {seconds:.2g} s")
                break
            count += came
            if not came and found != expected[i % numbers]:
                losses.append("another result")
        tidy()
    losses += wrong
    for where, ask in (("here", lambda c: c()), ("in another thread", lambda c: in_thread(c)[0])):
        if ask(lambda: call(0)) != expected[0]:
            losses.append(f"another result, or none, {where} afterwards")
    losses += left_over(engine)
    if n_files() > files and name not in EVENT_LOOPS:
        losses.append(f"{n_files() - files} open files")
    return count, [f"{name}, {role}: {loss}" for loss in losses]
