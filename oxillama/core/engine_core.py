"""Engine core: the step that schedules, computes, absorbs and releases."""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from oxillama._util.signals import DeferredInterrupt, Finalizer, check_running, check_stack
from oxillama.core.draft_scheduler import Drafting, verify
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.metrics_recorder import MetricsRecorder
from oxillama.core.request import Request, ResultQueue
from oxillama.core.results import FinishReason
from oxillama.core.runner import ClosedRunner, RunnerProtocol, StepAbandoned, execute_plan, next_plan
from oxillama.core.step_loop import StepLoop
from oxillama.errors import EngineClosedError, GenerateError, KvCacheFullError, OxiLlamaError, QueueFullError
from oxillama.metrics import RejectedReason
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.prefill_throttle import PrefillThrottle
from oxillama.scheduling.prefix_cache import BLOCK, STATE, WINDOWED
from oxillama.scheduling.scheduler import Plan as SequencePlan
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import n_common

__all__ = [
    "EngineCore",
]

T = TypeVar("T")

# Room on the stack that `submit` asks for: more than `StepLoop.drive`, which is called next, so that no request is
# queued that its caller then has no room to compute.
CALL_FRAMES = 220


class _Arrival:
    """Requests on their way to the queue."""

    __slots__ = ("_core", "requests")

    def __init__(self, core: EngineCore, requests: list[Request]) -> None:
        self._core, self.requests = core, requests

    def __call__(self) -> None:
        self._core._enqueue(self.requests)


class _DroppedTicket:
    """Ends requests whose ticket was dropped. Keeps neither them nor the core alive."""

    __slots__ = ("_core", "_requests")

    def __init__(self, core: EngineCore, requests: list[Request]) -> None:
        self._core, self._requests = weakref.ref(core), list(map(weakref.ref, requests))

    def __call__(self) -> None:
        core, requests = self._core(), [request for one in self._requests if (request := one()) is not None]
        if core is not None:
            core.cancel(requests)


Plan = list[tuple[Request, int]]


class ForkListener(Protocol):
    """A handle that lets go, in a forked child, of what another thread of the parent was using."""

    def after_fork(self) -> None: ...


class EngineCore:
    """Requests, what is kept for them, and the step that serves them. All of its state changes in a turn of its loop.

    Nothing that it owns refers back to it, so that the model's memory is free as soon as the engine is dropped.
    open: requests that were submitted and whose end was not reported yet, in this order.
    """

    def __init__(
        self,
        runner: RunnerProtocol,
        pool: SequencePool,
        block_size: int,
        token_budget: int,
        *,
        encoder: str = "",
        denoises: bool = False,
        encoder_decoder: str = "",
        **scheduling: Any,
    ) -> None:
        """`encoder`: name of an architecture that computes texts whole, each in one step, and predicts no next token.

        `denoises`: it has logits for each position all the same.

        `encoder_decoder`: name of one that reads prompts whole, and predicts what a decoder says then.
        `scheduling`: options of `Scheduler`.
        """
        self.runner: RunnerProtocol = runner
        self.pool = pool
        self.scheduler = Scheduler(pool, block_size, token_budget, whole=bool(encoder), **scheduling)
        block_bytes = runner.cache_bytes(1, 0, 0), runner.cache_bytes(0, 1, 0)
        self.meter = MetricsRecorder(self.scheduler, runner.memory_bytes(), block_bytes)
        self.throttle = PrefillThrottle(token_budget)
        self.encoder, self.denoises, self.encoder_decoder = encoder, denoises, encoder_decoder
        self.loop = StepLoop(self.step, self._drop_other_threads, self._recover, runner.num_threads)
        self.closed = False
        self.sessions: weakref.WeakSet[ForkListener] = weakref.WeakSet()
        self.drafting = Drafting()
        self._began = 0.0  # start of the step, where requests have drafts
        self._plans: tuple[Plan, Plan] = [], []
        self._scheduled: SequencePlan | None = None  # what the plans were made of
        self.open: dict[Request, None] = {}

    # ---- in a turn of the loop

    def step(self) -> None:
        """One turn. No token counts as computed before the model returned: an abandoned plan can be repeated."""
        self._drop_cancelled()
        if self.drafting.requests:
            self._draft()
        self._plans = self._schedule()
        if self.meter.changed:  # which must not wait for the end of a step that may take long
            self.meter.publish()
        n_prompt, seconds, failed = 0, 0.0, False
        for plan in self._plans:
            if plan and (computed := self._compute(plan)) is not None:
                n_prompt, seconds = n_prompt + computed[0], seconds + computed[1]
            elif plan:
                failed = True
        if self.throttle.n_taken:  # the seconds of one plan say nothing of tokens that shared the step with another
            self.throttle.observe(0 if failed else n_prompt, seconds)
        elif seconds and not n_prompt and not failed:
            self.throttle.decodes.append((len(self._plans[0]), seconds))
            if self.drafting.requests:  # with all that a step takes beside the model, but the drafts
                whole = time.perf_counter() - self._began - self.drafting.seconds
                self.drafting.costs.observe(sum(n for _, n in self._plans[0]), whole)
        self.meter.end()

    def _draft(self) -> None:
        """Asks drafts for the tokens of requests that have some."""
        self._began = time.perf_counter()
        for requests, error in self.drafting.ask(len(self.scheduler.running)):
            self._end_all(list(requests), "cancelled", error)

    def _compute(self, plan: Plan) -> tuple[int, float] | None:
        """One forward pass, and what follows from its rows: how many of its tokens are of prompts, and its seconds.

        None if the plan was abandoned or failed.
        """
        began = time.perf_counter()
        rows = self._forward(plan)
        if rows is None:
            return None
        if plan is self._plans[1] or not self._plans[1]:  # the rest is not for the cores
            self.loop.cores.give_back()
        self._advance(plan, rows)
        return self.meter.count(plan, began)

    def _drop_cancelled(self) -> None:
        """Ends requests that are not wanted any more, or whose deadline has passed."""
        scheduler = self.scheduler
        expired = scheduler.deadlines.soonest < math.inf and scheduler.expired(time.perf_counter())
        # A waiting request's cancel token is looked at by the thread that waits for it.
        for sequence in list(scheduler.running):
            request = sequence.handle
            if (request.unwanted or request.watched) and request.cancelled:
                self._end(request, "cancelled", request.failure)
        if self.loop.background_requests:
            for request in list(self.loop.background_requests):
                if request.cancelled:
                    self._end(request, "cancelled", request.failure)
        if scheduler.ended:
            self._tell_ended()
        if expired:
            self._end_all([sequence.handle for sequence in expired], "deadline")

    def _schedule(self) -> tuple[Plan, Plan]:
        """The plans of the step: for requests of logits, and for those of hidden states."""
        scheduled = next_plan(self.runner, self.scheduler, self.throttle)
        if scheduled == self._scheduled and not self.drafting.requests:  # a step like the last one
            return self._plans
        self._scheduled = scheduled
        logits: Plan = []
        hidden: Plan = []
        for sequence, n in scheduled:
            request: Request = sequence.handle
            clock = request.clock
            clock.n_beside = len(sequence.draft_tokens) + sequence.n_recompute
            if not clock.started_at:
                self._started(request, time.perf_counter())
            (hidden if request.want == "hidden" else logits).append((request, n))
        return logits, hidden

    def _started(self, request: Request, at: float) -> None:
        """A request takes part in a step for the first time: its deadline may count from there."""
        request.clock.started_at = at
        self.meter.started(request)
        if request.time_limit < math.inf:
            self.scheduler.set_deadline(request.sequence, at + request.time_limit)

    def _forward(self, plan: Plan) -> list[Any] | None:
        """Computes what each request of the plan wants: rows, or the likeliest token; None if the step was abandoned or
        failed."""
        try:
            return execute_plan(self.runner, plan, self._poll, hidden=plan[0][0].want == "hidden")
        except Exception as error:  # nothing has changed yet
            requests = [request for request, _ in plan]
            one = len({request.outbox for request in requests}) == 1  # call, whose error it is
            self._end_all(requests, "cancelled", error if one else _typed(error))
            return None

    def _poll(self) -> None:
        """Called while the model computes: gives the step up for Ctrl-C, or when none of its requests is wanted."""
        if not self.loop.interrupt.pending:
            for plan in self._plans:
                for request, _ in plan:
                    if request.wanted:
                        return
        raise StepAbandoned

    def _advance(self, plan: Plan, rows: list[Any]) -> None:
        advance = self.scheduler.advance
        for (request, n), own in zip(plan, rows, strict=True):
            if request.sequence.draft_tokens:
                self._verify(cast(GenerationRequest, request), own)
                continue
            advance(request.sequence, n)
            if own is not None:
                self._absorb(request, own)
        if self.scheduler.ended:
            self._tell_ended()

    def _absorb(self, request: Request, rows: Any) -> None:
        reason: FinishReason | None = "cancelled"
        error: BaseException | None = None
        try:
            reason = request.absorb(rows)
        except BaseException as caught:
            if request.shares and not isinstance(caught, OxiLlamaError):
                raise
            error = caught
        if request.followers and request.sequence.n_computed >= request.n_prompt:
            self._fork(request, rows)
        if reason is not None:
            self._end(request, reason, error)

    def _verify(self, request: GenerationRequest, rows: NDArray[np.float32]) -> None:
        """`_absorb` of a request with draft tokens: verification tells how many of its rows count."""
        reason: FinishReason | None = "cancelled"
        error: BaseException | None = None
        sequence = request.sequence
        ahead, n_before = sequence.draft_tokens, len(sequence.tokens)
        try:
            reason = verify(rows, ahead, request)
        except BaseException as caught:
            error = caught
        n = n_common(sequence.tokens[n_before:], ahead)
        self.scheduler.advance(sequence, 1 + n)
        self.meter.verified(n, len(ahead))
        if request.speculation is not None:
            again = sequence.n_recompute > 0 and reason is None
            request.speculation.checked(n, len(ahead), time.perf_counter() - self._began, again=again)
        if reason is not None:
            self._end(request, reason, error)

    def _fork(self, leader: Request, rows: Any) -> None:
        """A prompt is computed: those that waited for it take its last row, and go on from its blocks."""
        followers, leader.followers = leader.followers, []
        for request in followers:
            if request.outcome is None:
                request.sequence.n_cached = leader.sequence.n_cached
                self._started(request, leader.clock.started_at)
                self._absorb(request, rows)
                self.meter.forked(request)
            if request.outcome is None:
                request.sequence.handle = request
                self.scheduler.blocks.fork(leader.sequence, request.sequence)
                self.scheduler.add_request(request.sequence, accepted=True, beside=leader.sequence)

    def _end(self, request: Request, reason: FinishReason, error: BaseException | None = None) -> None:
        """Frees what a request has, unless it ended before; `_tell_ended` does the rest."""
        if request.outcome is None:
            request.outcome = reason, error
            if request.sequence.handle is not request:
                self._tell(request)  # it was never queued
            else:
                cut = reason in ("cancelled", "deadline")
                end = self.scheduler.cancel if cut else self.scheduler.finish
                end(request.sequence, keep_blocks=request.keep_blocks)
            for follower in request.followers:
                self._end(follower, reason, error)

    def _tell_ended(self) -> None:
        for sequence in self.scheduler.drain_finished():
            self._tell(sequence.handle)

    def _tell(self, request: Request) -> None:
        reason, error = request.outcome or ("cancelled", None)
        self.loop.background_requests.discard(request)
        if self.drafting.requests and isinstance(request, GenerationRequest):
            self.drafting.forget(request)
        request.finish(reason, error)
        self.open.pop(request, None)
        if not request.keep_blocks and request.sequence.handle is request:
            request.sequence.handle = None  # or each request would be left for the collector
        if request.clock.submitted_at:
            self.meter.ended(request, error)

    def _end_all(self, requests: list[Request], reason: FinishReason, error: BaseException | None = None) -> None:
        for request in requests:
            self._end(request, reason, error)
        self._tell_ended()

    def _enqueue(self, requests: list[Request]) -> None:
        now = time.perf_counter()
        self._scheduled = None  # a sequence may be queued again, with another request
        for request in requests:
            if request.outcome is not None:  # with the one that it follows
                continue
            request.clock.submitted_at = now
            self.meter.queued()
            try:
                if request.begin is not None:
                    request.begin(request.sequence)
                if not request.follows:
                    self.scheduler.add_request(request.sequence, accepted=True)
            except OxiLlamaError as error:
                self._end(request, "cancelled", error)
            except BaseException as error:  # in the middle of a change
                request.outcome = "cancelled", error
                raise
            else:
                if not request.follows:
                    request.sequence.handle = request
                if isinstance(request, GenerationRequest) and request.speculation is not None:
                    self.drafting.requests[request] = request.speculation
                if request.outbox.bell is not None:
                    self.loop.background_requests.add(request)
        if self.closed:  # between the check in `submit` and now
            self._shut()

    def _live(self) -> list[Request]:
        return [sequence.handle for sequence in self.scheduler.live.values()]

    def _shut(self) -> None:  # repeated, it does nothing more
        self.closed = True
        self.runner = ClosedRunner()
        self._end_all(self._live(), "cancelled", EngineClosedError("the engine was closed during the request"))

    def _recover(self, error: BaseException) -> None:
        """An error came in the middle of a change, and of no single request: none of the bookkeeping can be trusted.

        All requests end, those that had come to their end as they would have, and the cache is empty. Sessions and
        conversations keep their tokens, which their next calls compute again.
        """
        self.scheduler.reset()
        self.throttle = PrefillThrottle(self.scheduler.token_budget)
        failed = _typed(error)
        for request in list(self.open):
            if request.outcome is None:
                request.outcome = "cancelled", failed
            self._tell(request)
        self.meter.emptied()
        self.publish()

    def publish(self) -> None:
        """Lets others see the numbers of now."""
        self.meter.memory = self.runner.memory_bytes()
        self.meter.paging = self.runner.paging_counts() or self.meter.paging
        self.meter.publish()

    def prefix_cache_bytes(self) -> int:
        """Bytes of what the prefix cache has; sequences may use the same."""
        pool = self.pool
        return self.runner.cache_bytes(pool.blocks.n_kept, pool.windowed.n_kept, pool.slots.n_kept)

    def shrink(self, keep_bytes: int) -> int:
        """Drops what only the prefix cache uses, and gives the memory of all that is free back: bytes released.

        keep_bytes: of what the prefix cache has, as much may stay.
        """
        pool, prefix = self.pool, self.scheduler.prefix
        if prefix:
            for kind in (BLOCK, WINDOWED, STATE):
                while self.prefix_cache_bytes() > keep_bytes and prefix.evict(kind, 1):
                    pass
        return self.runner.release(pool.blocks.free_ids, pool.windowed.free_ids, pool.slots.free_ids)

    def _drop_other_threads(self, thread: int) -> None:
        """Ends requests of threads that a forked child doesn't have."""
        gone = GenerateError("the thread that waited for this request is not in this process")
        lost = [r for r in self._live() if r.thread != thread or r.outbox.bell is not None]
        self._end_all(lost, "cancelled", gone)
        self.loop.rung.clear()  # event loops are the parent's too
        for session in self.sessions:
            session.after_fork()

    # ---- from any thread: changes are posted, and run in a turn of the loop

    def submit(self, requests: Sequence[Request], *, patient: bool = False) -> Finalizer:
        """Queues requests, which end when the ticket that this returns is dropped; not those that were finished before
        they were saved.

        Raises EngineClosedError, KvCacheFullError if one can never fit, QueueFullError, or RecursionError, and queues
        none then. patient: it will be tried again, so that a refusal doesn't count.
        """
        self.check_open()
        check_stack(CALL_FRAMES)
        arriving: list[Request] = []
        arrival = _Arrival(self, arriving)
        try:
            for request in requests:
                if request.finish_reason is None:
                    self.scheduler.check_fits(request.sequence.n_reserve)
                    arriving.append(request)
            with DeferredInterrupt(), self.loop.lock:  # or two that come together could both find the last place
                if arriving:
                    coming: dict[Hashable, int] = {}
                    for change in list(self.loop.mail):
                        if isinstance(change, _Arrival) and change.requests:  # which have one owner
                            owner = change.requests[0].sequence.owner
                            coming[owner] = coming.get(owner, 0) + len(change.requests)
                    self.scheduler.check_queue(len(arriving), arriving[0].sequence.owner, coming)
                ticket = Finalizer(_DroppedTicket(self, arriving))
                self.open.update(dict.fromkeys(arriving))
                self.loop.post(arrival)
        except (KvCacheFullError, QueueFullError) as error:
            if not patient:
                reason: RejectedReason = "queue_full" if isinstance(error, QueueFullError) else "too_large"
                n_refused = sum(request.finish_reason is None for request in requests)
                self.loop.post(lambda: self.meter.rejected(reason, n_refused))
            raise
        return ticket

    def cancel(self, requests: Sequence[Request]) -> None:
        """Ends the requests that are not finished: their blocks are free at once, or after the step under way.

        That step is given up if no other request needs it.
        """
        unfinished = [r for r in requests if r.finish_reason is None]
        if unfinished:
            for request in unfinished:
                request.unwanted = True
            self.loop.post(lambda: self._end_all(unfinished, "cancelled"))

    def run(self, requests: Sequence[Request], outbox: ResultQueue) -> None:
        """Submits requests and returns when all are finished. Raises the error of the first that failed."""
        _ticket = None
        try:
            _ticket = self.submit(requests)
            self.drive(lambda: outbox.ended)
            if outbox.error is not None:
                raise outbox.error
        finally:
            self.cancel(requests)

    def change(self, action: Callable[[], T]) -> T:
        """Runs a short change of state between two steps; its result, or its error, when that is done.

        An error that is none of `OxiLlamaError` is taken for one in the middle of the change. Raises EngineClosedError.
        """
        self.check_open()
        return self._apply(action)

    def _apply(self, action: Callable[[], T]) -> T:
        self.loop.check_outside()
        check_stack(CALL_FRAMES)
        done: list[T] = []
        errors: list[BaseException] = []

        def change() -> None:
            try:
                done.append(action())
            except OxiLlamaError as error:
                errors.append(error)
            except BaseException as error:
                errors.append(error)
                raise

        self.loop.post(change)
        self.drive(lambda: done or errors)
        if errors:
            raise errors[0]
        return done[0]

    def post(self, change: Callable[[], object]) -> None:
        """Runs a short change, also of a closed engine: now, or at the end of the step that is under way."""
        self.loop.post(change)

    def tell_of_fork(self, listener: ForkListener) -> None:
        """Calls the listener's `after_fork` in forked children, as long as it lives."""
        self.sessions.add(listener)

    def drive(self, ready: Callable[[], object]) -> None:
        """Returns once ready() is true, having taken the steps that were needed for that."""
        self.loop.drive(ready, self.step)

    def close(self) -> None:
        """Ends every request with EngineClosedError, waits for the step under way, and refuses new ones."""
        if sys.is_finalizing():
            self.closed = True
        elif not self.closed:
            self._apply(self._shut)

    def shut(self, tell: Callable[[], object]) -> None:
        """`close` without waiting: calls `tell` in the turn that did it."""
        self.loop.post(self._shut)
        self.loop.post(tell)

    def check_open(self) -> None:
        """Raises EngineClosedError once the engine is closed, GenerateError once the interpreter ends."""
        check_running()
        if self.closed:
            raise EngineClosedError("the engine is closed: load the model again")

    def check_generates(self) -> None:
        """Raises GenerateError if the model has no next token, EngineClosedError once the engine is closed."""
        self.check_open()
        if self.encoder:
            use = "diffuse() writes with it" if self.denoises else "it is for embed() alone"
            raise GenerateError(f"architecture {self.encoder} reads texts whole and predicts no next token: {use}")

    def check_logits(self) -> None:
        """`check_generates` of what models for denoising have too."""
        self.check_open()
        if not self.denoises:
            self.check_generates()

    def check_continues(self) -> None:
        """`check_generates`; also raises GenerateError if a prompt can't be continued, since an encoder has read it."""
        self.check_generates()
        if self.encoder_decoder:
            raise GenerateError(
                f"architecture {self.encoder_decoder} reads each prompt whole, with an encoder: sessions and "
                "conversations, which continue one, are not supported; give each prompt to generate()"
            )


def _typed(error: BaseException) -> OxiLlamaError:
    """The error that requests get for one that none of them caused alone."""
    if isinstance(error, OxiLlamaError):
        return error
    failed = GenerateError(f"a step of the engine failed: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
