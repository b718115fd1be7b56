"""Step loop: threads that wait for results take the engine's steps in turn."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from oxillama._util.fork import STEPS, ForkRegistry, ended
from oxillama._util.signals import DeferredInterrupt, Finalizer, check_running, check_stack, frames_left
from oxillama.errors import GenerateError
from oxillama.kernels.compute_turn import COMPUTE_TURN

if TYPE_CHECKING:
    import asyncio

__all__ = ["Bell", "StepLoop"]

# Calls that a step and a change nest at most, and as many again.
STEP_FRAMES, CHANGE_FRAMES = 200, 100
LINGER = 0.05  # seconds that the loop's own thread waits for more: to start one takes longer than to wake one

log = logging.getLogger("oxillama")

_lives = ForkRegistry(STEPS)


class Bell(Protocol):
    """Wakes a caller that waits without driving the loop; `core/async_requests.py` has the one for coroutines.

    lost: its waiter is gone.
    """

    lost: bool

    def ring(self) -> None: ...


class StepLoop:
    """Runs `step` in whichever thread waits for something, so that no thread of its own is needed.

    A thread that waits takes steps until what it waits for is there; meanwhile the others sleep, and one of them goes
    on when it leaves. Each step serves all requests. No lock is held while a step runs: it is the turn that is taken.

    Before a step begins, it takes the cores that it computes with from those that the engines of the process share
    (`ComputeTurn`), and waits for them outside of the turn.

    The turn is given back whatever a step raises, and so is the lock: what must not be left out there is a store or a
    call of a function in C, before which Python neither looks for signals nor for room on its stack.

    Coroutines wait for results and take no steps: their requests are in the background, and while there are any, a
    thread of the loop's own drives it like every other; it waits a moment for further ones before it ends, as one
    request of a client often follows another. It is a daemon, ended before the interpreter is.

    background_requests: requests of callers that don't drive. rung: bells that wake their owners at the end of the
    turn, with one call for all of one event loop. lock: while a thread holds it, for a moment and under a
    `DeferredInterrupt`, no other one posts anything, and no turn begins or ends. mail: changes that wait for the end of
    the step. cores: of the steps, which a step that has nothing more to compute gives back before its end.
    """

    def __init__(
        self,
        step: Callable[[], None],
        on_fork: Callable[[int], None],
        on_error: Callable[[BaseException], None],
        n_threads: int,
    ) -> None:
        """Methods of the loop's owner, which it doesn't keep alive; and the threads that a step computes with.

        `on_fork(thread id)` runs in a forked child, whose only thread is the one named; `on_error(error)`, in a turn,
        after an error in the middle of a step or a change, and makes the owner's state whole again.
        """
        self._step = weakref.WeakMethod(step)
        self._on_fork = weakref.WeakMethod(on_fork)
        self._on_error = weakref.WeakMethod(on_error)
        self.cores = COMPUTE_TURN.share(n_threads)
        self._reset()
        _lives.add(self)

    def _reset(self) -> None:
        self.lock = threading.RLock()
        self._sleepers: deque[threading.Lock] = deque()
        self._owner: int | None = None
        self._settling = False
        self._broken: BaseException | None = None
        self._forks = 0
        self.mail: deque[Callable[[], object]] = deque()
        self._worker: threading.Thread | None = None
        # What the worker waits for while it has nothing to do: made here, so that parking takes no memory.
        self._parking = threading.Lock()
        self._parked = False
        self._stopping = False
        self.background_requests: set[Any] = set()
        self.rung: list[tuple[Bell, asyncio.Future[None]]] = []
        self.interrupt = DeferredInterrupt()

    def post(self, change: Callable[[], object]) -> None:
        """Runs a short change of the engine's state: now, or at the end of the step that is under way.

        What `change` raises is taken for an error in the middle of it: see `on_error`. The garbage collector may call
        this at any point, closing a stream that was dropped: also in the middle of another change, which then comes
        first. Near the end of the stack, or of the interpreter, the change waits for the next call of the engine.
        """
        self.mail.append(change)
        if frames_left() < CHANGE_FRAMES or sys.is_finalizing():
            return
        with DeferredInterrupt(), self.lock:
            if self._owner is None:
                self._settle()

    def finalizer(self, change: Callable[[], object]) -> Finalizer:
        """A part of an object, with which it posts a change when it is dropped."""
        return Finalizer(partial(self.post, change))

    def _settle(self) -> None:
        """Makes the changes that were posted, in a turn or with the lock."""
        if self._settling:
            return
        self._settling = True
        try:
            if self._broken is not None:
                self._mend()
            while self.mail or self.rung:
                while self.mail:
                    change = self.mail.popleft()
                    try:
                        change()
                    except BaseException as error:
                        self._broken = error
                        self._mend()
                if self.rung:
                    self._call()
        finally:
            self._settling = False
            if self._sleepers:
                self._wake()

    def _mend(self) -> None:
        """Until this is done no step is taken."""
        on_error, error = self._on_error(), self._broken
        if on_error is not None and error is not None:
            on_error(error)
        self._broken = None

    def _call(self) -> None:
        by_event_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for _, waiter in self.rung:
            by_event_loop.setdefault(waiter.get_loop(), []).append(waiter)
        for event_loop, waiters in by_event_loop.items():
            try:
                event_loop.call_soon_threadsafe(_wake, waiters)
            except RuntimeError:  # it is closed
                for bell, waiter in self.rung:
                    bell.lost = bell.lost or waiter.get_loop() is event_loop
        self.rung = []

    def _wake(self) -> None:
        while self._sleepers:
            self._sleepers.popleft().release()

    def _sleep(self, ready: Callable[[], object]) -> None:
        """Until a turn ends, or changes were made. Ctrl-C may come at any point of it: no lock is held while it waits,
        and no caller waits for it."""
        with self.lock:
            if (self._owner is None and not self._forks) or ready():
                return
            sleeper = threading.Lock()
            sleeper.acquire()
            self._sleepers.append(sleeper)
        sleeper.acquire()

    def drive(self, ready: Callable[[], object], step: Callable[[], None]) -> None:
        """Returns once ready() is true, taking steps until then, or waiting while another thread takes them.

        step: the owner's, which the caller keeps alive.

        Raises GenerateError from inside a step, which would wait for its own end, and when the interpreter ends;
        RecursionError where the stack could end in the middle of a step.
        """
        if ready():
            return
        check_stack(STEP_FRAMES)
        me = threading.get_ident()
        if self._owner == me:
            self.check_outside()
        waits = False
        while not ready():
            check_running()
            if self._owner is not None or self._forks:
                self._sleep(ready)
            elif waits:
                self.cores.wait()
            with DeferredInterrupt() as interrupt:
                if ready():
                    return
                with self.lock:
                    if self._owner is not None or self._forks:
                        continue
                    waits = not self.cores.take()
                    if waits:
                        continue
                    self._owner = me
                self.interrupt = interrupt
                try:
                    if self._broken is None:
                        step()
                except Exception as error:
                    self._broken = error
                except BaseException as error:  # of this thread, as what a signal's handler raised
                    self._broken = error
                    raise
                finally:
                    with self.lock:
                        try:
                            self._settle()
                        finally:
                            self._owner = None
                            self.cores.give_back()
                            while self._sleepers:
                                self._sleepers.popleft().release()

    def check_outside(self) -> None:
        """Raises GenerateError in the middle of a step of this thread."""
        if self._owner == threading.get_ident():
            raise GenerateError("the engine was called from inside its own step, which can't wait for another one")

    # The worker thread, for requests in the background.

    def start_worker(self) -> None:
        """Has requests in the background computed. Raises RuntimeError if there can be no more threads."""
        if ended():
            raise RuntimeError("the interpreter is ending")
        with DeferredInterrupt(), self.lock:
            self._stopping = False
            self._unpark()
            if self._worker is None and not self._idle():
                worker = threading.Thread(target=self._work, name="oxillama", daemon=True)
                worker.start()
                self._worker = worker

    def stop_worker(self) -> None:
        """Ends the thread and waits for that; its step is given up, and what it computes stays unfinished."""
        with DeferredInterrupt(), self.lock:
            self._stopping = True
            worker = self._worker
            if worker is not None and self._owner == worker.ident:
                self.interrupt.pending = True
            self._unpark()
            self._wake()
        if worker is not None:
            worker.join()

    def stop(self, *, wait: bool) -> None:
        """`stop_worker`, at the interpreter's end."""
        self.stop_worker()

    def _idle(self) -> bool:
        return self._stopping or not (self.background_requests or self.mail or self.rung)

    def _work(self) -> None:
        while True:
            try:
                step = self._step()
                if step is not None:
                    self.drive(self._idle, step)
                step = None  # which keeps the owner
                if not self._goes_on():
                    return
            except BaseException:  # ended by one, it would still be taken for the worker, and no other be started
                log.exception("the engine's thread goes on after an error")

    def _goes_on(self) -> bool:
        """Whether the worker has something to do, maybe after a while; otherwise it is the loop's no more."""
        for waits in (True, False):
            with self.lock:
                self._parked = False
                gone = self._stopping or self._step() is None
                if not gone and not self._idle():
                    return True
                if gone or not waits:
                    self._worker = None
                    return False
                self._parking.acquire(blocking=False)  # it is free at first, and if it was released too late
                self._parked = True
            self._parking.acquire(timeout=LINGER)
        return False

    def _unpark(self) -> None:
        if self._parked:
            self._parked = False
            self._parking.release()

    # A fork copies memory in whatever state other threads are changing it, and locks that they hold stay locked in the
    # child for ever. So a fork waits until no step is under way, and the child starts with locks of its own.

    def before_fork(self) -> None:
        with DeferredInterrupt():
            self.lock.acquire()
            self._forks += 1  # no step begins any more
            while self._owner not in (None, threading.get_ident()):
                sleeper = threading.Lock()
                sleeper.acquire()
                self._sleepers.append(sleeper)
                self.lock.release()
                sleeper.acquire()
                self.lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._forks -= 1
        self._wake()
        self.lock.release()

    def after_fork_in_child(self) -> None:
        self._reset()
        on_fork = self._on_fork()
        if on_fork is not None:
            on_fork(threading.get_ident())


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    """Wakes coroutines; called in their event loop."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
