"""What is asked of the engine's core from any thread."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from oxillama.engine.loop import StepLoop
from oxillama.engine.meter import Meter
from oxillama.engine.request import Outbox, Request
from oxillama.engine.results import FinishReason
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.spans import RunnerLike
from oxillama.errors import EngineClosedError, GenerateError, KvCacheFullError, QueueFullError
from oxillama.metrics import RejectedReason

__all__ = ["CoreCalls"]

T = TypeVar("T")


class CoreCalls:
    """The half of the core that doesn't run in turns of its loop, but asks for changes that do."""

    runner: RunnerLike
    scheduler: Scheduler
    meter: Meter
    encoder: str
    loop: StepLoop
    closed: bool
    _coming: deque[int]

    @abstractmethod
    def _enqueue(self, requests: list[Request]) -> None: ...

    @abstractmethod
    def _end_all(self, requests: list[Request], reason: FinishReason, error: Exception | None = None) -> None: ...

    @abstractmethod
    def _shut(self) -> None: ...

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
