"""`AsyncEngine.batch`: any number of prompts, computed together, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, cast

from oxillama._util.pickling import stays_here
from oxillama.core.async_requests import CoroutineBell, start_worker
from oxillama.core.batch import NO_SNAPSHOT, BatchRunner
from oxillama.core.engine_core import EngineCore
from oxillama.core.options import TextOptions
from oxillama.errors import EngineClosedError, GenerateError, SnapshotError

if TYPE_CHECKING:
    pass

__all__ = ["AsyncBatch", "made", "size_of"]

T = TypeVar("T")

# A prompt's tokens are made in the event loop up to this many characters: what takes longer than handing it to
# another thread and back, a millisecond on a busy machine, is done there.
INLINE_CHARACTERS = 2000


class AsyncBatch(Generic[T]):
    """The results of a batch, for `async for`; one task at a time reads them.

    Left early (`aclose`, the end of an `async with` block, dropped), it ends what is under way. A task that is
    cancelled while it waits, also by `asyncio.wait_for`, leaves the batch as it was: another call goes on.
    """

    __reduce_ex__ = stays_here("send its results, or its prompts, to a batch of the other process's engine")
    _pipeline: BatchRunner | None = None

    def __init__(self, core: EngineCore, pipeline: BatchRunner, prompts: Iterable[Any] | AsyncIterable[Any]):
        self._core = core
        self._bell = pipeline.bell = CoroutineBell(core.loop)
        self._prompts = aiter(prompts) if isinstance(prompts, AsyncIterable) else iter(prompts)
        self._taking: asyncio.Task[tuple[Any, ...]] | None = None
        self._making: asyncio.Task[Any] | None = None
        self._reading = False
        self._pipeline = pipeline

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        pipeline = self._pipeline
        if pipeline is None:
            raise StopAsyncIteration
        if self._reading:
            raise GenerateError("another task waits for this already: results are for one task at a time")
        self._reading = True
        try:
            if pipeline.result is None and not await self._find(pipeline):
                self._leave()
                raise StopAsyncIteration
        except EngineClosedError:
            self._leave()
            raise
        finally:
            self._reading = False
        found, error = cast(tuple[Any, BaseException | None], pipeline.result)
        pipeline.result = None
        if error is not None:
            raise error
        return cast(T, found)

    async def _find(self, pipeline: BatchRunner) -> bool:
        """Sees to a result; False at the end."""
        self._core.loop.check_outside()
        pipeline.retry()
        while True:
            if pipeline.can_put:
                await self._put(pipeline)
            elif pipeline.wants_more and await self._took_one(pipeline):
                continue
            elif pipeline.ready():
                pipeline.give()
                return True
            elif pipeline.empty and (self._taking is None or not pipeline.wants_more):
                error, pipeline.broken = pipeline.failure(), None
                if error is not None:
                    raise error
                return False
            else:
                start_worker(self._core)
                await self._bell.wait(
                    lambda: pipeline.ready() or (self._taken and (pipeline.wants_more or pipeline.empty))
                )

    @property
    def _taken(self) -> bool:
        return self._taking is not None and self._taking.done()

    async def _took_one(self, pipeline: BatchRunner) -> bool:
        """Takes a prompt, or the end, if there is one; does not wait for an asynchronous source."""
        if not isinstance(self._prompts, AsyncIterator):
            pipeline.take(self._prompts)
            await asyncio.sleep(0)  # however many are taken, other tasks go on
            return True
        if self._taking is None:
            self._taking = asyncio.ensure_future(_next_of(self._prompts))
            self._taking.add_done_callback(self._bell.ring_here)
            await asyncio.sleep(0)  # most sources have one at once
        if not self._taken:
            return False
        taking, self._taking = self._taking, None
        error = asyncio.CancelledError() if taking.cancelled() else taking.exception()
        match (None, error) if error else taking.result():
            case ():
                pipeline.exhausted = True
            case (None, error):
                pipeline.exhausted, pipeline.broken = True, error
            case (prompt,):
                pipeline.taken.append(prompt)
        return True

    async def _put(self, pipeline: BatchRunner) -> None:
        """Queues the prompt that was taken; a long one is made in another thread, which a cancelled task leaves to the
        next."""
        if size_of([pipeline.taken[0]], pipeline.options) <= INLINE_CHARACTERS:
            pipeline.put(pipeline.make())
        else:
            if self._making is None or self._making.cancelled():
                self._making = asyncio.ensure_future(asyncio.to_thread(pipeline.make))
            item = await asyncio.shield(self._making)
            self._making = None
            pipeline.put(item)
        start_worker(self._core)

    def _leave(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()
            if self._taking is not None and not self._taking.get_loop().is_closed():
                self._taking.cancel()

    async def snapshot(self, *ignored: object, **options: object) -> NoReturn:
        """Raises SnapshotError: see `Batch.snapshot`."""
        raise SnapshotError(NO_SNAPSHOT)

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


async def _next_of(prompts: AsyncIterator[Any]) -> tuple[Any, ...]:
    """(prompt,), () at the end, or (None, error)."""
    try:
        return (await anext(prompts),)
    except StopAsyncIteration:
        return ()
    except Exception as error:
        return None, error


def size_of(prompts: Any, options: TextOptions | None = None) -> int:
    """Characters to make tokens of; a grammar takes longer than those that are made at once."""
    grammar = options is not None and (options.chain.config.constraint or options.tool_use) is not None
    return grammar * (INLINE_CHARACTERS + 1) + sum(len(p) for p in prompts if isinstance(p, str))


async def made(size: int, make: Callable[[], T]) -> T:
    """make(), in another thread if that is a matter of more than INLINE_CHARACTERS."""
    return make() if size <= INLINE_CHARACTERS else await asyncio.to_thread(make)
