"""Who takes the next step: any number of threads drive one engine, one step at a time."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from oxillama.errors import GenerateError
from oxillama.interrupt import DeferredInterrupt
from oxillama.lives import STEPS, Lives

if TYPE_CHECKING:
    import asyncio

__all__ = ["StepLoop"]

_lives = Lives(STEPS)


class Bell(Protocol):
    """Of somebody who waits in an event loop. lost: that is closed."""

    lost: bool


class StepLoop:
    """Runs `step` in whichever thread waits for something, so that no thread of its own is needed.

    A thread that waits takes steps until what it waits for is there; meanwhile the others sleep, and one of them goes
    on when it leaves. Each step serves everybody. No lock is held while a step runs: it is the turn that is taken.

    Coroutines wait for results and take no steps: their requests are guests, and while there are any, a thread of the
    loop's own drives it like every other. It is a daemon, ended before the interpreter is.

    guests: requests of those who don't drive. rung: bells whose owners are told at the end of the turn, with one
    call for all of one event loop.
    """

    def __init__(
        self, step: Callable[[], None], on_fork: Callable[[int], None], on_error: Callable[[BaseException], None]
    ) -> None:
        """Methods of the loop's owner, which it doesn't keep alive.

        `on_fork(thread id)` runs in a forked child, whose only thread is the one named; `on_error`, as a change, after
        an error in a step that the loop's own thread took.
        """
        self._step = weakref.WeakMethod(step)
        self._on_fork = weakref.WeakMethod(on_fork)
        self._on_error = weakref.WeakMethod(on_error)
        self._reset()
        _lives.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._n_waiting = 0
        self._owner: int | None = None
        self._settling = False
        self._forks = 0
        self._mail: deque[Callable[[], object]] = deque()
        self._worker: threading.Thread | None = None
        self._stopping = False
        self.guests: set[object] = set()
        self.rung: list[tuple[Bell, asyncio.Future[None]]] = []
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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For a moment, nobody else posts anything, and no turn begins or ends."""
        with DeferredInterrupt(), self._lock:
            yield

    def _settle(self) -> None:
        if self._settling:
            return
        self._settling = True
        try:
            while self._mail or self.rung:
                while self._mail:
                    self._mail.popleft()()
                self._call()
        finally:
            self._settling = False
            if self._n_waiting:
                self._changed.notify_all()

    def _call(self) -> None:
        rung, self.rung = self.rung, []
        by_event_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for _, waiter in rung:
            by_event_loop.setdefault(waiter.get_loop(), []).append(waiter)
        for event_loop, waiters in by_event_loop.items():
            try:
                event_loop.call_soon_threadsafe(_wake, waiters)
            except RuntimeError:  # it is closed
                for bell, waiter in rung:
                    bell.lost = bell.lost or waiter.get_loop() is event_loop

    def _wait(self) -> None:
        self._n_waiting += 1
        try:
            self._changed.wait()
        finally:
            self._n_waiting -= 1

    def drive(self, ready: Callable[[], object]) -> None:
        """Returns once ready() is true, taking steps until then, or waiting while another thread takes them.

        Raises GenerateError from inside a step, which would wait for its own end.
        """
        me, step = threading.get_ident(), self._step()
        if not ready():
            self.check_outside()
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

    def check_outside(self) -> None:
        """Raises GenerateError in the middle of a step of this thread."""
        if self._owner == threading.get_ident():
            raise GenerateError("the engine was called from inside its own step, which can't wait for another one")

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

    # The thread for guests.

    def engage(self) -> None:
        """Sees to it that the guests' requests are computed. Raises RuntimeError if there can be no more threads."""
        with DeferredInterrupt(), self._lock:
            self._stopping = False
            if self._worker is None and not self._idle():
                worker = threading.Thread(target=self._work, name="oxillama", daemon=True)
                worker.start()
                self._worker = worker

    def dismiss(self) -> None:
        """Ends the thread and waits for that; its step is given up, and what it computes stays unfinished."""
        with DeferredInterrupt(), self._lock:
            self._stopping = True
            worker = self._worker
            if worker is not None and self._owner == worker.ident:
                self.interrupt.pending = True
            self._changed.notify_all()
        if worker is not None:
            worker.join()

    def stop(self, *, wait: bool) -> None:
        """`dismiss`, at the interpreter's end."""
        self.dismiss()

    def _idle(self) -> bool:
        return self._stopping or not (self.guests or self._mail)

    def _work(self) -> None:
        while True:
            try:
                self.drive(self._idle)
            except BaseException as error:
                self._report(error)
            with self._lock:
                if self._idle() or self._step() is None:
                    self._worker = None
                    return

    def _report(self, error: BaseException) -> None:
        on_error = self._on_error()
        if on_error is not None:
            self.post(lambda: on_error(error))

    # A fork copies memory in whatever state other threads are changing it, and locks that they hold stay locked in the
    # child for ever. So a fork waits until no step is under way, and the child starts with locks of its own.

    def before_fork(self) -> None:
        with DeferredInterrupt():
            self._lock.acquire()
            self._forks += 1  # no step begins any more
            while self._owner not in (None, threading.get_ident()):
                self._wait()

    def after_fork_in_parent(self) -> None:
        self._forks -= 1
        self._changed.notify_all()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._reset()
        on_fork = self._on_fork()
        if on_fork is not None:
            on_fork(threading.get_ident())


def _wake(waiters: "list[asyncio.Future[None]]") -> None:
    """In the event loop."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
