"""Exceptions at every call of a function of the package's, one after another, while an engine serves several requests.

As from a lack of memory, which Python reports wherever a function begins: whatever is raised ends the request that it
came in the middle of, or the step with a typed error, and the engine serves what comes next.
"""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from oxillama.errors import OxiLlamaError

PACKAGE = "oxillama/"
KINDS = (MemoryError, RecursionError, SystemExit, KeyboardInterrupt)
SECONDS = 60.0  # after which a thread hangs


class Planted:
    """Raises at call n of a function of the package's, in this thread or one that it starts; counts the calls.

    where: of call n. Functions that run when an object is dropped raise to no caller, and are left out.
    """

    def __init__(self, kind: type[BaseException], n: int) -> None:
        self.error, self.n, self.n_seen, self.where = kind("planted"), n, 0, ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if event != "call" or PACKAGE not in path or "/tests/" in path or name == "__del__":
            return
        self.n_seen += 1
        if self.n_seen == self.n:
            self.where = f"{path.rpartition(PACKAGE)[2]}:{name}"
            raise self.error

    @contextmanager
    def traced(self) -> Iterator[None]:
        before = sys.gettrace()
        threading.settrace(self)  # of threads that begin meanwhile
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]


def outcome_of(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


def in_thread(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """`outcome_of` in another thread; TimeoutError if it hangs."""
    found: list[tuple[Any, BaseException | None]] = []
    thread = threading.Thread(target=lambda: found.append(outcome_of(call)), daemon=True)
    thread.start()
    thread.join(SECONDS)
    return found[0] if found else (None, TimeoutError("the thread hangs"))


@contextmanager
def quietly() -> Iterator[None]:
    """Silences errors of finalisers, which no caller gets."""
    before, sys.unraisablehook = sys.unraisablehook, lambda *ignored: None
    logging.disable()
    try:
        yield
    finally:
        gc.collect(1)
        sys.unraisablehook = before
        logging.disable(logging.NOTSET)


def wrong(found: tuple[Any, BaseException | None], expected: Any, planted: BaseException) -> str:
    """What is wrong with an outcome: neither the expected result, nor the planted error, nor one of ours; or ""."""
    result, error = found
    if error is None:
        return "" if result == expected else f"another result: {result!r}"
    if isinstance(error, OxiLlamaError) or error is planted:
        return ""
    return f"{type(error).__name__}: {error}"


def planted_at(scene: Callable[[], Any], kind: type[BaseException], n: int) -> tuple[Planted, list[str]]:
    """The engine of a new scene serves with an error at call n: what went wrong by it.

    A scene has `act()`, which is traced, `others()`, which finishes what was under way beside it, `again()`, which any
    later caller may ask for, `check()`, which raises AssertionError for what was lost, and what the first three give
    undisturbed in `expected`.
    """
    made, planted = scene(), Planted(kind, n)
    losses = []
    with quietly():
        with planted.traced():
            act = outcome_of(made.act)
        others = in_thread(made.others)
        raw = [error for _, error in (act, others) if error is planted.error]
        of_act, of_others, of_again = made.expected
        losses += [f"the call: {loss}" for loss in [wrong(act, of_act, planted.error)] if loss]
        losses += [f"others: {loss}" for loss in [wrong(others, of_others, planted.error)] if loss]
        if len(raw) > 1:
            losses.append("two requests had the error of one")
        del act, others, raw
        planted.error.__traceback__ = None
        gc.collect(1)
        for name, call in (("a later call", outcome_of), ("a later thread", in_thread)):
            result, error = call(made.again)
            if error is not None or result != of_again:
                losses.append(f"{name}: {error or result!r}")
        found = in_thread(made.check)[1]
        if found is not None:
            losses.append(f"afterwards: {type(found).__name__}: {found}")
        with suppress(Exception):
            made.close()
    return planted, [f"{loss}, after {kind.__name__} at call {n}, {planted.where}" for loss in losses]


def sweep(scene: Callable[[], Any], kind: type[BaseException], first: int, step: int) -> tuple[int, list[str]]:
    """`planted_at` for every step-th call from `first` on: how many errors were planted, and what went wrong."""
    losses: list[str] = []
    for count in itertools.count():
        planted, found = planted_at(scene, kind, first + count * step)
        losses += found
        if planted.n_seen < planted.n:
            break
    return count, losses
