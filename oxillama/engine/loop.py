"""Who takes the next step: any number of threads drive one engine, one step at a time."""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

from oxillama.interrupt import DeferredInterrupt

__all__ = ["StepLoop"]

_loops: "weakref.WeakSet[StepLoop]" = weakref.WeakSet()


class StepLoop:
    """Runs `step` in whichever thread waits for something, so that no thread of its own is needed.

    A thread that waits takes steps until what it waits for is there; meanwhile the others sleep, and one of them goes
    on when it leaves. Each step serves everybody. No lock is held while a step runs: it is the turn that is taken.
    """

    def __init__(self, step: Callable[[], None], on_fork: Callable[[int], None]) -> None:
        """Methods of the loop's owner, which it doesn't keep alive.

        `on_fork(thread id)` runs in a forked child, whose only thread is the one named.
        """
        self._step = weakref.WeakMethod(step)
        self._on_fork = weakref.WeakMethod(on_fork)
        self._reset()
        _loops.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._n_waiting = 0
        self._owner: int | None = None
        self._settling = False
        self._forks = 0
        self._mail: deque[Callable[[], object]] = deque()
        self.interrupt = DeferredInterrupt()

    def post(self, change: Callable[[], object]) -> None:
        """Runs a short change of the engine's state: now, or at the end of the step that is under way.

        `change` must not raise. The garbage collector may call this at any point, closing a stream that was dropped:
        also in the middle of another change, which then comes first.
        """
        self._mail.append(change)
        with DeferredInterrupt(), self._lock:
            if self._owner is None:
                self._settle()

    def _settle(self) -> None:
        if self._settling:
            return
        self._settling = True
        try:
            while self._mail:
                self._mail.popleft()()
        finally:
            self._settling = False
            if self._n_waiting:
                self._changed.notify_all()

    def _wait(self) -> None:
        self._n_waiting += 1
        try:
            self._changed.wait()
        finally:
            self._n_waiting -= 1

    def drive(self, ready: Callable[[], object]) -> None:
        """Returns once ready() is true, taking steps until then, or waiting while another thread takes them."""
        me, step = threading.get_ident(), self._step()
        while step is not None and not ready():
            if self._owner is not None or self._forks:
                with self._lock:
                    while (self._owner is not None or self._forks) and not ready():
                        self._wait()
            with DeferredInterrupt() as interrupt:
                if ready() or not self._take_turn(me):
                    continue
                self.interrupt = interrupt
                try:
                    step()
                finally:
                    self._end_turn()

    def _take_turn(self, me: int) -> bool:
        with self._lock:
            if self._owner is not None or self._forks:
                return False
            self._owner = me
            return True

    def _end_turn(self) -> None:
        with self._lock:
            self._settle()
            self._owner = None

    # A fork copies memory in whatever state other threads are changing it, and locks that they hold stay locked in the
    # child for ever. So a fork waits until no step is under way, and the child starts with locks of its own.

    def _before_fork(self) -> None:
        with DeferredInterrupt():
            self._lock.acquire()
            self._forks += 1  # no step begins any more
            while self._owner not in (None, threading.get_ident()):
                self._wait()

    def _after_fork_in_parent(self) -> None:
        self._forks -= 1
        self._changed.notify_all()
        self._lock.release()

    def _after_fork_in_child(self) -> None:
        self._reset()
        on_fork = self._on_fork()
        if on_fork is not None:
            on_fork(threading.get_ident())


_forking = threading.local()


def _before_fork() -> None:
    # In one order everywhere, so that two threads that fork at once can't wait for each other.
    _forking.loops = sorted(_loops, key=id)
    for loop in _forking.loops:
        loop._before_fork()


def _after_fork_in_parent() -> None:
    for loop in _forking.loops:
        loop._after_fork_in_parent()
    _forking.loops = []


def _after_fork_in_child() -> None:
    for loop in _forking.loops:
        loop._after_fork_in_child()
    _forking.loops = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
