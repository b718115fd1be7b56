"""How coroutines wait for an engine without blocking their event loop."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from oxillama.engine.core import EngineCore
from oxillama.engine.loop import StepLoop
from oxillama.engine.request import Outbox, Request
from oxillama.engine.results import Chunk
from oxillama.errors import GenerateError

__all__ = ["Call", "CoroutineBell", "engage"]

R = TypeVar("R", bound=Request)


class CoroutineBell:
    """Wakes the one coroutine that waits, if any does. What nobody waits for costs no call into an event loop."""

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
            while not ready():
                self._waiter = waiter = asyncio.get_running_loop().create_future()
                if not ready():  # it could have rung before there was a waiter
                    await waiter
        finally:
            self._in_use, self._waiter = False, None


class Call(Generic[R]):
    """Requests that a coroutine made. However they are left, or dropped, nothing of them stays behind."""

    def __init__(self, core: EngineCore, requests: list[R], outbox: Outbox, bell: CoroutineBell) -> None:
        """Queues the requests, and sees to it that they are computed. Raises what `EngineCore.submit` raises."""
        self._core = core
        self.requests = requests
        self._outbox = outbox
        self._bell = bell
        core.submit(requests)
        engage(core)

    async def next(self) -> tuple[int, Chunk] | None:
        """The next (index, chunk); None after the last. Raises the error of the first request that failed."""
        outbox = self._outbox
        if outbox.whole or not outbox.items:
            await self._bell.wait(lambda: not outbox.n_open or outbox.error or (outbox.items and not outbox.whole))
        if outbox.error is not None:
            raise outbox.error
        return outbox.items.popleft() if outbox.items else None

    async def finish(self) -> None:
        """Returns when all requests are finished. Raises the error of the first that failed."""
        outbox = self._outbox
        await self._bell.wait(lambda: not outbox.n_open or outbox.error)
        if outbox.error is not None:
            raise outbox.error

    def leave(self) -> None:
        """Ends what is not finished."""
        self._core.cancel(self.requests)

    def __del__(self) -> None:
        self.leave()


def engage(core: EngineCore) -> None:
    """Has the engine's own thread compute. Raises GenerateError if there can be no more threads."""
    try:
        core.loop.engage()
    except RuntimeError as error:
        raise GenerateError(f"the engine's thread can't be started: {error}") from error
