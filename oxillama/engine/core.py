"""The loop of the engine: choose, compute, absorb, release."""

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from oxillama.engine.loop import StepLoop
from oxillama.engine.meter import Meter
from oxillama.engine.request import Outbox, Request
from oxillama.engine.results import FinishReason
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.spans import NoRunner, RunnerLike, n_rows, span_of
from oxillama.errors import EngineClosedError, GenerateError, OxiLlamaError
from oxillama.interrupt import DeferredInterrupt
from oxillama.kv_cache.prefix import WINDOWED
from oxillama.kv_cache.sequence_pool import SequencePool

__all__ = ["EngineCore"]

T = TypeVar("T")
Plan = list[tuple[Request, int]]


class Session(Protocol):
    """What must be told of a fork."""

    def after_fork(self) -> None: ...


class _StepAbandoned(Exception):
    """Nobody wants the step that is under way any more."""


class EngineCore:
    """Requests, what is kept for them, and the step that serves them. All of its state changes in a turn of its loop.

    Nothing that it owns refers back to it, so that the model's memory is free as soon as the engine is dropped.
    """

    def __init__(
        self,
        runner: RunnerLike,
        pool: SequencePool,
        block_size: int,
        token_budget: int,
        *,
        encoder: str = "",
        **scheduling: Any,
    ) -> None:
        """`encoder`: name of an architecture that computes texts whole, each in one step, and predicts nothing.

        `scheduling`: options of `Scheduler`.
        """
        self.runner: RunnerLike = runner
        self.pool = pool
        self.scheduler = Scheduler(pool, block_size, token_budget, whole=bool(encoder), **scheduling)
        self.meter = Meter(self.scheduler)
        self.encoder = encoder
        self.loop = StepLoop(self.step, self._drop_other_threads, self._fail_guests)
        self.closed = False
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._plan: Plan = []
        self._coming: deque[int] = deque()  # numbers of requests that wait for the end of a step to be queued

    # ---- from any thread

    def submit(self, requests: Sequence[Request]) -> None:
        """Queues requests. Raises EngineClosedError, KvCacheFullError if one can never fit, or QueueFullError, and
        queues none then."""
        self.check_open()
        self.scheduler.check_queue(sum(self._coming) + len(requests))
        for request in requests:
            self.scheduler.check_fits(request.sequence.n_reserve)
        with DeferredInterrupt():
            self._coming.append(len(requests))
            self.loop.post(lambda: self._enqueue(list(requests)))

    def cancel(self, requests: Sequence[Request]) -> None:
        """Ends the requests that are not finished: their blocks are free at once, or after the step under way.

        That step is given up if nobody else needs it.
        """
        unfinished = [r for r in requests if r.finish_reason is None]
        if unfinished:
            for request in unfinished:
                request.unwanted = True
            self.loop.post(lambda: self._end_all(unfinished, "cancelled"))

    def run(self, requests: Sequence[Request], outbox: Outbox) -> None:
        """Submits requests and returns when all are finished. Raises the error of the first that failed."""
        try:
            self.submit(requests)
            self.drive(lambda: not outbox.n_open or outbox.error)
            if outbox.error:
                raise outbox.error
        finally:
            self.cancel(requests)

    def change(self, action: Callable[[], T]) -> T:
        """Runs a short change of state between two steps; its result when that is done. Raises EngineClosedError."""
        self.check_open()
        return self._apply(action)

    def _apply(self, action: Callable[[], T]) -> T:
        self.loop.check_outside()
        done: list[T] = []
        self.loop.post(lambda: done.append(action()))
        self.loop.drive(lambda: done)
        return done[0]

    def drive(self, ready: Callable[[], object]) -> None:
        """Returns once ready() is true, having taken the steps that were needed for that."""
        self.loop.drive(ready)

    def close(self) -> None:
        """Ends every request with EngineClosedError, waits for the step under way, and refuses new ones."""
        if not self.closed:
            self._apply(self._shut)

    def shut(self, tell: Callable[[], object]) -> None:
        """`close` without waiting: calls `tell` in the turn that did it."""
        self.loop.post(self._shut)
        self.loop.post(tell)

    def check_open(self) -> None:
        """Raises EngineClosedError once the engine is closed."""
        if self.closed:
            raise EngineClosedError("the engine is closed: load the model again")

    def check_generates(self) -> None:
        """Raises GenerateError if the model has no next token, EngineClosedError once the engine is closed."""
        self.check_open()
        if self.encoder:
            raise GenerateError(
                f"architecture {self.encoder} reads texts whole and predicts no next token: it is for embed() alone"
            )

    # ---- in a turn of the loop

    def step(self) -> None:
        """One turn. State changes only after the model's forward returned, so an abandoned step can be repeated."""
        self._drop_cancelled()
        self._plan = self._schedule()
        self.meter.begin()
        for want_hidden in (False, True):
            plan = [(r, n) for r, n in self._plan if (r.want == "hidden") == want_hidden]
            if plan:
                began = time.perf_counter()
                rows = self._forward(plan, want_hidden)
                if rows is not None:
                    self._advance(plan, rows)
                    self.meter.count(plan, began)
        self.meter.end()

    def shrink(self) -> int:
        """Drops what only the prefix cache uses, and gives the memory of all that is free back: bytes released."""
        pool = self.pool
        if self.scheduler.prefix:
            self.scheduler.prefix.clear()
        return self.runner.release(pool.blocks.free_ids, pool.windowed.free_ids, pool.slots.free_ids)

    def _drop_cancelled(self) -> None:
        scheduler = self.scheduler
        ended = [s for s in scheduler.running if cast(Request, s.handle).cancelled]
        for sequence in ended + scheduler.expired(time.perf_counter()):
            self._end(cast(Request, sequence.handle), "cancelled")
        # Whoever waits in a thread looks at his cancel token himself, also while his request waits.
        self._end_all([r for r in self._guests() if r.cancelled or _is_lost(r)], "cancelled")

    def _guests(self) -> list[Request]:
        return [cast(Request, guest) for guest in self.loop.guests]

    def _schedule(self) -> Plan:
        plan = [(cast(Request, sequence.handle), n) for sequence, n in self.scheduler.schedule()]
        for kind, source, target in self.scheduler.copies:
            self.runner.copy_block(source, target, windowed=kind == WINDOWED)
        self.scheduler.copies.clear()
        for request, _ in plan:
            if not request.started_at:
                request.started_at = time.perf_counter()
                self.meter.started(request)
        return plan

    def _forward(self, plan: Plan, want_hidden: bool) -> NDArray[np.float32] | None:
        """Rows of the model for the plan; None if the step was abandoned or failed."""
        spans = [span_of(request, n) for request, n in plan]
        forward = self.runner.hidden if want_hidden else self.runner.forward
        try:
            return forward(spans, self._poll)
        except _StepAbandoned:
            return None
        except Exception as error:
            for request, _ in plan:
                self._end(request, "cancelled", error)
            return None

    def _poll(self) -> None:
        """Called while the model computes: gives the step up for Ctrl-C, or when all of its requests are cancelled."""
        if not self.loop.interrupt.pending:
            for request, _ in self._plan:
                if not request.cancelled:
                    return
        raise _StepAbandoned

    def _advance(self, plan: Plan, rows: NDArray[np.float32]) -> None:
        row = 0
        for request, n in plan:
            n_wanted = n_rows(request, n)
            self.scheduler.advance(request.sequence, n)
            if n_wanted:
                self._absorb(request, rows[row : row + n_wanted])
                row += n_wanted

    def _absorb(self, request: Request, rows: NDArray[np.float32]) -> None:
        try:
            reason = request.absorb(rows)
        except Exception as error:
            self._end(request, "cancelled", error)
        else:
            if reason is not None:
                self._end(request, reason)

    def _end(self, request: Request, reason: FinishReason, error: Exception | None = None) -> None:
        if request.finish_reason is None:
            if request.sequence.handle is request:  # otherwise it was never queued
                self.scheduler.finish(request.sequence, keep_blocks=request.keep_blocks)
            self.loop.guests.discard(request)
            request.finish(reason, error)
            if request.submitted_at:
                self.meter.ended(request, error)

    def _end_all(self, requests: list[Request], reason: FinishReason, error: Exception | None = None) -> None:
        for request in requests:
            self._end(request, reason, error)

    def _enqueue(self, requests: list[Request]) -> None:
        now = time.perf_counter()
        self._coming.popleft()
        for request in requests:
            request.submitted_at = now
            self.meter.queued()
            try:
                if request.begin is not None:
                    request.begin(request.sequence)
                self.scheduler.add(request.sequence, accepted=True)
            except OxiLlamaError as error:
                request.finish("cancelled", error)
                self.meter.ended(request, error)
            else:
                request.sequence.handle = request
                if request.outbox.bell is not None:
                    self.loop.guests.add(request)
        if self.closed:  # between the check in `submit` and now
            self._shut()

    def _live(self) -> list[Request]:
        sequences = [*self.scheduler.running, *self.scheduler.waiting]
        return [cast(Request, s.handle) for s in sequences]

    def _shut(self) -> None:  # repeated, it does nothing more
        self.closed = True
        self.runner = NoRunner()
        self._end_all(self._live(), "cancelled", EngineClosedError("the engine was closed during the request"))

    def _fail_guests(self, error: BaseException) -> None:
        """Something went wrong in a step that was nobody's own: those who can't see that are told."""
        failed = GenerateError(f"a step of the engine failed: {type(error).__name__}: {error}")
        failed.__cause__ = error
        self._end_all(self._guests(), "cancelled", failed)

    def _drop_other_threads(self, thread: int) -> None:
        """In a forked child: requests of threads that it doesn't have would be computed for nobody."""
        gone = GenerateError("the thread that waited for this request is not in this process")
        lost = [r for r in self._live() if r.thread != thread or r.outbox.bell is not None]
        self._end_all(lost, "cancelled", gone)
        self._coming.clear()
        self.loop.rung.clear()  # event loops are the parent's too
        for session in self.sessions:
            session.after_fork()


def _is_lost(request: Request) -> bool:
    bell = request.outbox.bell
    return bell is not None and bell.lost
