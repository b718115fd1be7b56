"""Ctrl-C while something must not be left half done."""

import importlib
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["DeferredInterrupt"]

try:
    # CPython's functions without the wrappers that turn numbers into enums and back: 0.2 µs instead of 2, and each step
    # makes three of these calls.
    _signals: Any = importlib.import_module("_signal")
except ImportError:
    _signals = signal


class DeferredInterrupt:
    """While entered, Ctrl-C is only noted; leaving hands it to the handler that was there before.

    Python raises KeyboardInterrupt between any two bytecodes of the main thread. In the middle of a step that would
    leave a token drawn but not stored, or a block taken but owned by nobody, in requests of other threads too. Long
    work inside looks at `pending` where it can be given up. In other threads than the main one this does nothing, since
    signals don't reach them.
    """

    __slots__ = ("_active", "_frame", "_previous", "pending")

    def __init__(self) -> None:
        self.pending = self._active = False
        self._frame: FrameType | None = None

    def __enter__(self) -> "DeferredInterrupt":
        if threading.current_thread() is threading.main_thread():
            previous = _signals.getsignal(signal.SIGINT)
            if callable(previous):  # otherwise nothing would be raised in Python
                self._previous = previous
                try:
                    _signals.signal(signal.SIGINT, self._note)
                    self._active = True
                except ValueError:  # the first thread of a subinterpreter gets no signals
                    pass
        return self

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.pending, self._frame = True, frame

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._active:
            self._active = False
            _signals.signal(signal.SIGINT, self._previous)
            if self.pending:
                self._previous(signal.SIGINT, self._frame)
