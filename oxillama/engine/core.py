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
from oxillama.engine.pace import Pace
from oxillama.engine.request import Outbox, Request
from oxillama.engine.results import FinishReason
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.spans import NoRunner, RunnerLike, n_rows, span_of
from oxillama.errors import EngineClosedError, GenerateError, KvCacheFullError, OxiLlamaError, QueueFullError
from oxillama.kv_cache.sequence_pool import SequencePool
from oxillama.metrics import RejectedReason

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
        self.meter = Meter(self.scheduler, runner.memory_bytes())
        self.pace = Pace(token_budget)
        self.encoder = encoder
        self.loop = StepLoop(self.step, self._drop_other_threads, self._fail_guests)
        self.closed = False
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._plan: Plan = []
        self._coming: deque[int] = deque()  # numbers of requests that wait for the end of a step to be queued

    # ---- from any thread

    def submit(self, requests: Sequence[Request], *, patient: bool = False) -> None:
        """Queues requests. Raises EngineClosedError, KvCacheFullError if one can never fit, or QueueFullError, and
        queues none then. patient: it will be tried again, so that a refusal doesn't count."""
        self.check_open()
        try:
            for request in requests:
                self.scheduler.check_fits(request.sequence.n_reserve)
            with self.loop.alone():  # or two that come together could both find the last place
                self.scheduler.check_queue(sum(self._coming) + len(requests))
                self._coming.append(len(requests))
                self.loop.post(lambda: self._enqueue(list(requests)))
        except (KvCacheFullError, QueueFullError) as error:
            if not patient:
                reason: RejectedReason = "queue_full" if isinstance(error, QueueFullError) else "too_large"
                self.loop.post(lambda: self.meter.rejected(reason, len(requests)))
            raise

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
                    self.pace.observe(*self.meter.count(plan, began))
        self.meter.end()

    def publish(self) -> None:
        """Lets others see the numbers of now."""
        self.meter.memory = self.runner.memory_bytes()
        self.meter.publish()

    def _drop_cancelled(self) -> None:
        # Whoever waits in a thread looks at his cancel token himself, also while his request waits.
        seen = [cast(Request, s.handle) for s in self.scheduler.running] + self._guests()
        late = [cast(Request, s.handle) for s in self.scheduler.expired(time.perf_counter())]
        self._end_all([r for r in seen if r.cancelled] + late, "cancelled")

    def _guests(self) -> list[Request]:
        return [cast(Request, guest) for guest in self.loop.guests]

    def _schedule(self) -> Plan:
        plan = [(cast(Request, sequence.handle), n) for sequence, n in self.scheduler.step(self.pace.chunk)]
        for source, target in self.scheduler.copies:
            self.runner.copy_block(source, target)
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
            self._end_all([request for request, _ in plan], "cancelled", error)
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
        self._tell_ended()

    def _absorb(self, request: Request, rows: NDArray[np.float32]) -> None:
        try:
            reason = request.absorb(rows)
        except Exception as error:
            self._end(request, "cancelled", error)
        else:
            if reason is not None:
                self._end(request, reason)

    def _end(self, request: Request, reason: FinishReason, error: Exception | None = None) -> None:
        """Frees what a request has, unless it ended before; `_tell_ended` does the rest."""
        if request.outcome is None:
            request.outcome = reason, error
            if request.sequence.handle is not request:
                self._tell(request)  # it was never queued
            else:
                end = self.scheduler.cancel if reason == "cancelled" else self.scheduler.finish
                end(request.sequence, keep_blocks=request.keep_blocks)

    def _tell_ended(self) -> None:
        for sequence in self.scheduler.drain_finished():
            self._tell(cast(Request, sequence.handle))

    def _tell(self, request: Request) -> None:
        reason, error = request.outcome or ("cancelled", None)
        self.loop.guests.discard(request)
        request.finish(reason, error)
        if request.submitted_at:
            self.meter.ended(request, error)

    def _end_all(self, requests: list[Request], reason: FinishReason, error: Exception | None = None) -> None:
        for request in requests:
            self._end(request, reason, error)
        self._tell_ended()

    def _enqueue(self, requests: list[Request]) -> None:
        now = time.perf_counter()
        self._coming.popleft()
        for request in requests:
            request.submitted_at = now
            self.meter.queued()
            try:
                if request.begin is not None:
                    request.begin(request.sequence)
                self.scheduler.add_request(request.sequence, accepted=True)
            except OxiLlamaError as error:
                request.outcome = "cancelled", error
                self._tell(request)
            else:
                request.sequence.handle = request
                if request.outbox.bell is not None:
                    self.loop.guests.add(request)
        if self.closed:  # between the check in `submit` and now
            self._shut()

    def _live(self) -> list[Request]:
        return [cast(Request, sequence.handle) for sequence in self.scheduler.live.values()]

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
