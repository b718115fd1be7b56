"""Python's cyclic garbage collector, paused while many objects are made that stay."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused_collector"]


class _Pause:
    """The pause of the process, which lasts as long as one is open in any thread.

    Thresholds are set to zero, and given back unless others were set meanwhile. `gc.disable` and `gc.isenabled` belong
    to the program: it may call them at any time, also around its own work, as `timeit` does.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # an object that is freed within may want a pause, too
        self.n_open = 0
        self.thresholds = gc.get_threshold()

    def begin(self) -> None:
        with self.lock:
            self.n_open += 1
            if self.n_open == 1:
                self.thresholds = gc.get_threshold()
                gc.set_threshold(0, *self.thresholds[1:])

    def end(self) -> None:
        with self.lock:
            self.n_open -= 1
            if self.n_open == 0:
                self.give_back()

    def give_back(self) -> None:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*self.thresholds)

    def after_fork_in_child(self) -> None:
        """The threads that would end the pause are not there."""
        self.lock = threading.RLock()
        if self.n_open:
            self.n_open = 0
            self.give_back()


_pause = _Pause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pause.after_fork_in_child)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pauses the collector of the process for work of a bounded size.

    Each collection looks at all that was made so far: half the time of compiling a schema of megabytes went to them,
    and a small schema may pay for a whole process. Reference counts free memory meanwhile as ever.
    """
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()
