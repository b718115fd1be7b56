"""`AsyncEngine.batch`: any number of prompts, computed together, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from oxillama.engine.bell import CoroutineBell, engage
from oxillama.engine.core import EngineCore
from oxillama.engine.pipeline import Pipeline
from oxillama.engine.results import BatchFailure, Completion

__all__ = ["AsyncBatch"]

T = TypeVar("T")
Add = Callable[[Any], Any]


class AsyncBatch(Generic[T]):
    """The results of a batch, for `async for`; one task at a time reads them.

    Left early (`aclose`, the end of an `async with` block, dropped, the waiting task cancelled), it ends what is under
    way.
    """

    _pipeline: Pipeline | None = None

    def __init__(self, core: EngineCore, pipeline: Pipeline, prompts: Iterable[Any] | AsyncIterable[Any], add: Add):
        """`add(prompt)`, awaited, adds a prompt to the pipeline."""
        self._core = core
        self._bell = pipeline.bell = CoroutineBell(core.loop)
        self._prompts = aiter(prompts) if isinstance(prompts, AsyncIterable) else iter(prompts)
        self._add = add
        self._taking: asyncio.Task[tuple[Any, ...]] | None = None
        self._pipeline = pipeline

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        pipeline = self._pipeline
        if pipeline is None:
            raise StopAsyncIteration
        try:
            found = await self._next(pipeline)
        except BaseException:
            self._leave()
            raise
        if found is None:
            self._leave()
            raise StopAsyncIteration
        return cast(T, pipeline.outcome(found))

    async def _next(self, pipeline: Pipeline) -> Completion | BatchFailure | None:
        pipeline.retry()
        while True:
            if pipeline.wants_more and await self._took_one(pipeline):
                continue
            if pipeline.ready():
                return pipeline.take()
            if pipeline.empty and (self._taking is None or not pipeline.wants_more):
                if pipeline.broken is not None:
                    raise pipeline.broken
                return None
            engage(self._core)
            await self._bell.wait(lambda: pipeline.ready() or (self._taken and (pipeline.wants_more or pipeline.empty)))

    @property
    def _taken(self) -> bool:
        return self._taking is not None and self._taking.done()

    async def _took_one(self, pipeline: Pipeline) -> bool:
        """Takes a prompt, or the end, if there is one; does not wait for an asynchronous source."""
        if isinstance(self._prompts, AsyncIterator):
            if self._taking is None:
                self._taking = asyncio.ensure_future(_next_of(self._prompts))
                self._taking.add_done_callback(self._bell.ring_here)
                await asyncio.sleep(0)  # most sources have one at once
            if not self._taken:
                return False
            taking, self._taking = self._taking, None
            prompt = taking.result()
        else:
            prompt = _take(self._prompts)
            await asyncio.sleep(0)  # however many are taken, other tasks go on
        match prompt:
            case ():
                pipeline.stop()
            case (None, error):
                pipeline.stop(error)
            case _:
                await self._add(prompt[0])
                engage(self._core)
        return True

    def _leave(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()
            if self._taking is not None and not self._taking.get_loop().is_closed():
                self._taking.cancel()

    async def aclose(self) -> None:
        """Ends what is under way and takes no more prompts; further calls do nothing."""
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._leave()

    def __del__(self) -> None:
        self._leave()


def _take(prompts: Iterator[Any]) -> tuple[Any, ...]:
    """(prompt,), () at the end, or (None, error)."""
    try:
        return (next(prompts),)
    except StopIteration:
        return ()
    except Exception as error:
        return None, error


async def _next_of(prompts: AsyncIterator[Any]) -> tuple[Any, ...]:
    """`_take` for asynchronous sources."""
    try:
        return (await anext(prompts),)
    except StopAsyncIteration:
        return ()
    except Exception as error:
        return None, error
