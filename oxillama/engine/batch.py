"""`Engine.batch`: any number of prompts, computed together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar, Unpack, cast, overload

from oxillama.engine.core import EngineCore
from oxillama.engine.options import Prompt, StreamOptions, read_options
from oxillama.engine.pipeline import MAX_IN_FLIGHT, Errors, Pipeline, Progress, read_settings
from oxillama.engine.results import BatchFailure, Completion
from oxillama.engine.texts import TextMaker
from oxillama.errors import ConfigError, EngineClosedError, SnapshotError
from oxillama.interrupt import DeferredInterrupt
from oxillama.pickling import stays_here

__all__ = ["Batch", "BatchMethods"]

T = TypeVar("T")

NO_SNAPSHOT = (
    "a batch can't be saved, since its prompts come from an iterable of your own: keep the results, and give those "
    "prompts that have none to a new batch, with the same results; or save each request with stream(prompt).snapshot()"
)

# Who works longer than this between two results has the rest computed meanwhile, by the engine's own thread. To start
# that costs some tenths of a millisecond, which those who only collect results needn't pay for.
AWAY_SECONDS = 0.002


class Batch(Iterator[T]):
    """The results of a batch; ends, when dropped or closed (also as a context manager), what is under way.

    An interrupt (Ctrl-C, or a signal whose handler raises) leaves it as it was: asking for the next result goes on, and
    each prompt has its result once. Only where the interrupt came out of the iterable of prompts itself, no more are
    taken, and after the results of the others a GenerateError says so.
    """

    __reduce_ex__ = stays_here("send its results, or its prompts, to a batch of the other process's engine")
    _pipeline: Pipeline | None = None

    def __init__(self, core: EngineCore, pipeline: Pipeline, prompts: Iterator[Any]) -> None:
        self._core = core
        self._prompts = prompts
        self._pipeline = pipeline
        self._left_at = math.inf

    def __next__(self) -> T:
        pipeline = self._pipeline
        if pipeline is None:
            raise StopIteration
        away = time.perf_counter() - self._left_at
        if pipeline.result is None and not self._find(pipeline):  # there is one if its caller was interrupted
            self.close()
            raise StopIteration
        if away > AWAY_SECONDS:
            pipeline.entrust()
        self._left_at = time.perf_counter()
        found, error = cast(tuple[Any, BaseException | None], pipeline.result)
        pipeline.result = None  # from here on nothing is called, so that Python looks for no signals
        if error is None:
            return found  # type: ignore[no-any-return]
        raise error

    def _find(self, pipeline: Pipeline) -> bool:
        """Sees to a result; False at the end."""
        try:
            pipeline.retry()
            while pipeline.can_put or pipeline.wants_more:
                if not pipeline.taken:
                    pipeline.take(self._prompts)
                if pipeline.taken:
                    pipeline.put(pipeline.make())
            if pipeline.empty:
                error = pipeline.failure()
                pipeline.broken = None
                if error is None:
                    return False
                raise error
            if not pipeline.ready():
                pipeline.take_back()
                self._core.drive(lambda: pipeline.ready() or pipeline.cancelled)
            if not pipeline.ready():
                pipeline.cancel()
                self._core.drive(pipeline.ready)
            pipeline.give()
        except EngineClosedError:
            self.close()
            raise
        return True

    def snapshot(self, *ignored: object, **options: object) -> NoReturn:
        """Raises SnapshotError: the prompts that are to come are the caller's, and no file can hold an iterable.

        What has results is done: a new batch of the other prompts gives the same as this one would. Each request of
        `stream` can be saved by itself.
        """
        raise SnapshotError(NO_SNAPSHOT)

    def close(self) -> None:
        """Ends what is under way and takes no more prompts; further calls do nothing."""
        if self._pipeline is not None:
            with DeferredInterrupt():
                pipeline, self._pipeline = self._pipeline, None
                pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class BatchMethods:
    """Methods of the engine for any number of prompts."""

    _core: EngineCore
    _maker: TextMaker

    @overload
    def batch(
        self,
        prompts: Iterable[Prompt],
        *,
        ordered: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        errors: Literal["raise"] = "raise",
        progress: Progress = False,
        n: None = None,
        **options: Unpack[StreamOptions],
    ) -> Batch[Completion]: ...

    @overload
    def batch(
        self,
        prompts: Iterable[Prompt],
        *,
        ordered: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        errors: Literal["raise"] = "raise",
        progress: Progress = False,
        n: int,
        **options: Unpack[StreamOptions],
    ) -> Batch[list[Completion]]: ...

    @overload
    def batch(
        self,
        prompts: Iterable[Prompt],
        *,
        ordered: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        errors: Errors,
        progress: Progress = False,
        n: None = None,
        **options: Unpack[StreamOptions],
    ) -> Batch[Completion | BatchFailure]: ...

    @overload
    def batch(
        self,
        prompts: Iterable[Prompt],
        *,
        ordered: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        errors: Errors,
        progress: Progress = False,
        n: int,
        **options: Unpack[StreamOptions],
    ) -> Batch[list[Completion] | BatchFailure]: ...

    def batch(
        self,
        prompts: Iterable[Prompt],
        *,
        ordered: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        errors: Errors = "raise",
        progress: Progress = False,
        n: int | None = None,
        **options: Unpack[StreamOptions],
    ) -> Batch[Any]:
        """Continues any number of prompts, computed together; an iterator over the completions.

        Prompts are taken as they are needed, by the thread that asks for results: a generator of millions is fine.
        Those that were taken are computed while it asks for the next result, and also while it does something else, if
        that takes a few milliseconds.

        ordered: results in the order of the prompts; else as they finish, and `index` tells which prompt's they are.
        max_in_flight: prompts taken whose results were not given yet, at most.
        errors: a prompt that fails has its error raised in its place, and asking for the next result goes on after it;
            or "yield": a `BatchFailure` in its place. No other result is lost either way, nor by an interrupt: after
            Ctrl-C, too, asking for the next result goes on.
        progress: True shows a bar on stderr; a function is called with the number of results given, and of all if
            `prompts` has a length, else None.
        n: so many completions of each prompt: a list of them is its result.
        options: those of `stream`, for all prompts. A cancel token ends what is under way, and takes no more prompts. A
            deadline counts from each prompt's own first step unless `deadline_from` says "submit"; a prompt that has no
            token by then fails with DeadlineError.

        An error of the iterable `prompts` itself is raised after the results of the prompts before it. Raises
        ConfigError and TypeError for the options; EngineClosedError ends the batch.
        """
        settings = read_settings(prompts, ordered, max_in_flight, errors, progress)
        if not isinstance(prompts, Iterable):
            raise ConfigError("an asynchronous iterable of prompts is for AsyncEngine.batch()")
        parsed = read_options("batch", {"n": n, **options}, self._maker.sampling_defaults)
        self._core.check_generates()
        return Batch(self._core, Pipeline(self._core, self._maker, parsed, settings), iter(prompts))
