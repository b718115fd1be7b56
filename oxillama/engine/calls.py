"""What is asked of the engine's core from any thread."""

import sys
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from oxillama.engine.loop import StepLoop
from oxillama.engine.meter import Meter
from oxillama.engine.request import Outbox, Request
from oxillama.engine.results import FinishReason
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.spans import RunnerLike
from oxillama.errors import EngineClosedError, GenerateError, KvCacheFullError, OxiLlamaError, QueueFullError
from oxillama.interrupt import Finalizer, check_stack
from oxillama.lives import check_running
from oxillama.metrics import RejectedReason

__all__ = ["CoreCalls"]

T = TypeVar("T")

# More than `StepLoop.drive` asks for, which follows: nothing is queued that can't be computed then.
CALL_FRAMES = 220


class _Arrival:
    """Requests on their way to the queue."""

    __slots__ = ("_core", "requests")

    def __init__(self, core: "CoreCalls", requests: list[Request]) -> None:
        self._core, self.requests = core, requests

    def __call__(self) -> None:
        self._core._enqueue(self.requests)


class CoreCalls:
    """The half of the core that doesn't run in turns of its loop, but asks for changes that do.

    open: requests that were submitted, and whose makers were not told of their end, in this order.
    """

    runner: RunnerLike
    scheduler: Scheduler
    meter: Meter
    encoder: str
    loop: StepLoop
    closed: bool
    open: dict[Request, None]

    @abstractmethod
    def _enqueue(self, requests: list[Request]) -> None: ...

    @abstractmethod
    def step(self) -> None: ...

    @abstractmethod
    def _end_all(self, requests: list[Request], reason: FinishReason, error: BaseException | None = None) -> None: ...

    @abstractmethod
    def _shut(self) -> None: ...

    def submit(self, requests: Sequence[Request], *, patient: bool = False) -> Finalizer:
        """Queues requests, which end when the ticket that this returns is dropped.

        Raises EngineClosedError, KvCacheFullError if one can never fit, QueueFullError, or RecursionError, and queues
        none then. patient: it will be tried again, so that a refusal doesn't count.
        """
        self.check_open()
        check_stack(CALL_FRAMES)
        arrival = _Arrival(self, list(requests))
        try:
            for request in requests:
                self.scheduler.check_fits(request.sequence.n_reserve)
            with self.loop.alone():  # or two that come together could both find the last place
                coming = sum(len(change.requests) for change in self.loop.mail if isinstance(change, _Arrival))
                self.scheduler.check_queue(coming + len(requests))
                ticket = Finalizer(_Left(self, arrival.requests))
                self.open.update(dict.fromkeys(requests))
                self.loop.post(arrival)
        except (KvCacheFullError, QueueFullError) as error:
            if not patient:
                reason: RejectedReason = "queue_full" if isinstance(error, QueueFullError) else "too_large"
                self.loop.post(lambda: self.meter.rejected(reason, len(requests)))
            raise
        return ticket

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
            raise GenerateError(
                f"architecture {self.encoder} reads texts whole and predicts no next token: it is for embed() alone"
            )


class _Left:
    """Ends requests whose ticket was dropped. Keeps neither them nor the core alive."""

    __slots__ = ("_core", "_requests")

    def __init__(self, core: CoreCalls, requests: list[Request]) -> None:
        self._core, self._requests = weakref.ref(core), list(map(weakref.ref, requests))

    def __call__(self) -> None:
        core, requests = self._core(), [request for one in self._requests if (request := one()) is not None]
        if core is not None:
            core.cancel(requests)
