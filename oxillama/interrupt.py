"""Ctrl-C, or another signal, while something must not be left half done."""

import importlib
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import Any

__all__ = ["DeferredInterrupt"]

try:
    # CPython's functions without the wrappers that turn numbers into enums and back: 0.2 µs instead of 2, and each step
    # makes three of these calls.
    _signals: Any = importlib.import_module("_signal")
except ImportError:
    _signals = signal

# Those whose handlers are made to raise: requests to end, and limits of time.
NUMBERS = [int(getattr(signal, name, 0)) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP")]
Handler = Callable[[int, FrameType | None], object]


class DeferredInterrupt:
    """While entered, Ctrl-C is only noted; leaving hands it to the handler that was there before.

    Python raises KeyboardInterrupt between any two bytecodes of the main thread. In the middle of a step that would
    leave a token drawn but not stored, or a block taken but owned by nobody, in requests of other threads too. Long
    work inside looks at `pending` where it can be given up. In other threads than the main one this does nothing, since
    signals don't reach them.

    The same holds for SIGTERM, SIGALRM and SIGHUP where the program has handlers of its own for them, which may raise,
    too. They don't make `pending`: a timer that rings all the time must not keep a step from being done.
    """

    __slots__ = ("_noted", "_previous", "_undo", "pending")

    def __init__(self) -> None:
        self.pending = False
        self._noted: dict[int, FrameType | None] = {}
        self._previous: dict[int, Handler] = {}
        self._undo: list[Callable[[], object]] = [bool] * 4

    def __enter__(self) -> "DeferredInterrupt":
        if threading.current_thread() is threading.main_thread():
            try:
                for i, number in enumerate(NUMBERS):
                    previous = _signals.getsignal(number) if number else None
                    if callable(previous):  # otherwise nothing would be raised in Python
                        self._previous[number] = previous
                        self._undo[i] = partial(_signals.signal, number, previous)
                        _signals.signal(number, self._note)
            except ValueError:  # the first thread of a subinterpreter gets no signals
                self._undo = [bool] * 4
            except BaseException:  # of a handler whose turn had not come yet
                self._leave()
                raise
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted[number] = frame
        self.pending = self.pending or number == signal.SIGINT

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._previous:
            self._leave()

    def _leave(self) -> None:
        # A handler that is back may raise at once, and none of the others may be forgotten for that. So this is no
        # loop, and what is called are functions in C: between these lines Python looks for no signals.
        one, two, three, four = self._undo
        try:
            one()
        finally:
            try:
                two()
            finally:
                try:
                    three()
                finally:
                    try:
                        four()
                    finally:
                        if self._noted:
                            self._hand_on()

    def _hand_on(self) -> None:
        number, frame = self._noted.popitem()
        try:
            self._previous[number](number, frame)
        finally:
            if self._noted:
                self._hand_on()
