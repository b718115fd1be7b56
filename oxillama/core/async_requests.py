"""Requests of event loops: wake-ups of coroutines that wait for results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from oxillama._util.pickling import stays_here
from oxillama.core.engine_core import EngineCore
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.request import Request, ResultQueue, SnapshotProtocol, unfinished
from oxillama.core.results import Chunk
from oxillama.core.step_loop import StepLoop
from oxillama.core.text_stream import save_request
from oxillama.errors import GenerateError, SnapshotError

__all__ = [
    "AsyncChunks",
    "Call",
    "CoroutineBell",
    "elsewhere",
    "start_worker",
]

R = TypeVar("R", bound=Request)
T = TypeVar("T")


class CoroutineBell:
    """Wakes the one coroutine that waits, if any does. Without one, it makes no call into the event loop."""

    __slots__ = ("_in_use", "_loop", "_waiter", "lost")

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop
        self._in_use = False
        self._waiter: asyncio.Future[None] | None = None
        self.lost = False

    def ring(self) -> None:
        """In a turn of the loop."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._loop.rung.append((self, waiter))

    def ring_here(self, *ignored: object) -> None:
        """In the event loop of the coroutine that waits."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, ready: Callable[[], object]) -> None:
        """Returns once ready() is true. Raises GenerateError if another coroutine waits already."""
        if self._in_use:
            raise GenerateError("another task waits for this already: results are for one task at a time")
        self._in_use = True
        try:
            if not ready():
                self._loop.check_outside()
            while not ready():
                self._waiter = waiter = asyncio.get_running_loop().create_future()
                if not ready():  # it could have rung before there was a waiter
                    await waiter
        finally:
            self._in_use, self._waiter = False, None


class Call(Generic[R]):
    """Requests that a coroutine made. However they are left, or dropped, nothing of them stays behind."""

    def __init__(self, core: EngineCore, requests: list[R], outbox: ResultQueue, bell: CoroutineBell) -> None:
        """Queues the requests, and sees to it that they are computed. Raises what `EngineCore.submit` raises."""
        self._core = core
        self.requests = requests
        self._outbox = outbox
        self._bell = bell
        core.loop.check_outside()
        self._ticket = core.submit(unfinished(requests))
        start_worker(core)

    async def next(self) -> tuple[int, Chunk] | None:
        """The next (index, chunk); None after the last. Raises the error of the first request that failed."""
        outbox = self._outbox
        if outbox.whole or not outbox.items:
            await self._bell.wait(lambda: outbox.ended or (outbox.items and not outbox.whole))
        if outbox.error is not None:
            raise outbox.error
        return outbox.items.popleft() if outbox.items else None

    async def finish(self) -> None:
        """Returns when all requests are finished. Raises the error of the first that failed."""
        outbox = self._outbox
        await self._bell.wait(lambda: outbox.ended)
        if outbox.error is not None:
            raise outbox.error

    def leave(self) -> None:
        """Ends what is not finished."""
        self._core.cancel(self.requests)


class AsyncChunks:
    """The chunks of one completion, for `async for`; one task at a time reads them.

    The engine goes on whether they are read or not, so that a slow reader keeps nothing from others: what waits for it
    is at most the rest of its own completion. Leaving early (`aclose`, the end of an `async with` block, dropping it,
    cancelling the task that waits) ends the request at once.
    """

    __reduce_ex__ = stays_here("send snapshot_bytes() instead, with which engine.resume() goes on")

    def __init__(
        self, start: Callable[[], Awaitable[Call[GenerationRequest]]], snapshots: SnapshotProtocol | None = None
    ) -> None:
        self._start = start
        self._snapshots = snapshots
        self._call: Call[GenerationRequest] | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._ended:
            raise StopAsyncIteration
        try:
            if self._call is None:
                self._call = await self._start()
            found = await self._call.next()
        except BaseException:
            self._leave()
            raise
        if found is None:
            self._leave()
            raise StopAsyncIteration
        return found[1]

    async def snapshot(self, path: Any = None, **options: Any) -> bytes | None:
        """Saves the request as it is now, in another thread; it is begun if it was not yet. See `Chunks.snapshot`."""
        if self._call is None and not self._ended:
            self._call = await self._start()
        if self._snapshots is None or self._call is None:
            raise SnapshotError("there is no request that could be saved: it was left before it began")
        call, maker = self._call, self._snapshots
        return await elsewhere(maker.core, save_request, maker, call.requests, call._outbox, path, **options)

    async def snapshot_bytes(self, **options: Any) -> bytes:
        """`snapshot` without a path."""
        found: Any = await self.snapshot(**options)
        return bytes(found)

    def _leave(self) -> None:
        self._ended = True
        if self._call is not None:
            self._call.leave()

    async def aclose(self) -> None:
        """Ends the request, if it isn't finished; further calls do nothing."""
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._leave()


async def elsewhere(core: EngineCore, call: Callable[..., T], *args: Any, **options: Any) -> T:
    """What a call gives that waits for the engine, in another thread. Raises GenerateError inside a step."""
    core.loop.check_outside()
    return await asyncio.to_thread(call, *args, **options)


def start_worker(core: EngineCore) -> None:
    """Has the engine's own thread compute. Raises GenerateError if there can be no more threads."""
    try:
        core.loop.start_worker()
    except RuntimeError as error:
        raise GenerateError(f"the engine's thread can't be started: {error}") from error
