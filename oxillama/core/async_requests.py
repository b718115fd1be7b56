"""Requests of event loops: wake-ups of coroutines that wait for results, and the calls of handles as coroutines."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from collections.abc import Sequence as SequenceOf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from oxillama._util.lazy import LateModule
from oxillama._util.notebook import LiveText
from oxillama._util.pickling import stays_here
from oxillama._util.places import Path
from oxillama._util.threads import in_thread, starting
from oxillama.config import SamplingOptions
from oxillama.core.batch import NO_SNAPSHOT, BatchRunner
from oxillama.core.beam_rounds import BeamRounds
from oxillama.core.engine_core import EngineCore
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.options import TextOptions
from oxillama.core.request import Request, ResultQueue, SnapshotProtocol
from oxillama.core.results import BeamHypothesis, Chunk
from oxillama.core.session import SamplerLike, Session
from oxillama.core.step_loop import StepLoop
from oxillama.core.text_stream import save_request
from oxillama.errors import EngineClosedError, GenerateError, SnapshotError, ThreadStartError
from oxillama.sampling import LogitsProcessor, Sampler

if TYPE_CHECKING:
    import asyncio
else:
    asyncio = LateModule("asyncio")

__all__ = [
    "AsyncBatch",
    "AsyncBeamRounds",
    "AsyncChunks",
    "AsyncSession",
    "Call",
    "CoroutineBell",
    "as_coroutine",
    "elsewhere",
    "made",
    "size_of",
    "start_worker",
]

R = TypeVar("R", bound=Request)
T = TypeVar("T")
P = ParamSpec("P")
# How often a call of a task that was cancelled is told to end, until it has begun and does: seconds.
PATIENCE = 0.02


class CoroutineBell:
    """Wakes the one coroutine that waits, if any does. Without one, it makes no call into the event loop."""

    __slots__ = ("_in_use", "_loop", "_waiter", "lost")

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop
        self._in_use = False
        self._waiter: asyncio.Future[None] | None = None
        self.lost = False

    def ring(self) -> None:
        """Wakes the coroutine; called in a turn of the step loop."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._loop.rung.append((self, waiter))

    def ring_here(self, *ignored: object) -> None:
        """Wakes the coroutine; called in its event loop."""
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
                self._loop.check_outside()
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
        self._ticket = core.submit(requests)
        start_worker(core)

    async def next(self) -> tuple[int, Chunk] | None:
        """The next (index, chunk); None after the last. Raises the error of the first request that failed."""
        outbox = self._outbox
        if outbox.whole or not outbox.items:
            await self._bell.wait(outbox.is_readable)
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

    async def show(self) -> None:
        """`Chunks.show`: reads all chunks, and shows their text as it comes."""
        live = LiveText()
        try:
            async for chunk in self:
                live.push((chunk.index, chunk.reasoning, chunk.text))
        finally:
            live.end()

    async def snapshot(self, path: Any = None, **options: Any) -> bytes | None:
        """Saves the request as it is now, in another thread; it is begun if it was not yet. See `Chunks.snapshot`."""
        if self._call is None and not self._ended:
            self._call = await self._start()
        if self._snapshots is None or self._call is None:
            raise SnapshotError("there is no request that could be saved: it was left before it began")
        call, writer = self._call, self._snapshots
        return await elsewhere(writer.core, save_request, writer, call.requests, call._outbox, path, **options)

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
    """Result of a call that waits for the engine, in another thread. Raises GenerateError inside a step."""
    core.loop.check_outside()
    return await in_thread(call, *args, **options)


def start_worker(core: EngineCore) -> None:
    """Has the engine's own thread compute. Raises GenerateError if there can be no more threads."""
    try:
        with starting("the engine's thread"):
            core.loop.start_worker()
    except ThreadStartError:
        raise
    except RuntimeError as error:
        raise GenerateError(f"the engine's thread can't be started: {error}") from error


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
        try:
            if error is not None:
                raise error
            return cast(T, found)
        finally:
            found = error = None  # else a traceback that holds this frame holds them, and so the failures before it

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
                self._making = asyncio.ensure_future(in_thread(pipeline.make))
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
    n: int = sum(len(p) for p in prompts if isinstance(p, str))
    if options is None:
        return n
    grammar = (options.chain.config.constraint or options.tool_use) is not None
    if options.chain.masked:  # each word is spelt alone and after a space
        n += 2 * sum(len(word) for word in options.chain.config.bad_words if isinstance(word, str))
    return grammar * (INLINE_CHARACTERS + 1) + n


async def made(size: int, make: Callable[[], T]) -> T:
    """make(), in another thread if that is a matter of more than INLINE_CHARACTERS."""
    return make() if size <= INLINE_CHARACTERS else await in_thread(make)


# ---- sessions and searches, whose calls other threads do


def as_coroutine(
    method: Callable[Concatenate[Any, P], T], target: str
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The method of the object in the attribute `target` as a coroutine, which another thread runs."""

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **given: P.kwargs) -> T:
        return await elsewhere(self._core, method, getattr(self, target), *args, **given)

    return call


async def ended(core: EngineCore, cancel: Callable[[], None], call: Callable[[], T]) -> T:
    """Result of a call that another thread runs. A task that is cancelled ends it, and waits for that: a step."""
    task = asyncio.ensure_future(elsewhere(core, call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not task.done():
            cancel()
            await asyncio.wait([task], timeout=PATIENCE)
        raise


class AsyncSession:
    """A `Session` for coroutines: `AsyncEngine.session` makes one. One task at a time uses it.

    Its calls take the same arguments, raise the same errors and give the same logits. They are done by other threads;
    cancelling a task ends its call, and leaves the session as it was before. Use with `async with`, or call `close`.

    session: the `Session`, for all that takes no time.
    """

    __reduce_ex__ = stays_here("send snapshot_bytes() instead, with which engine.resume() goes on, or fork() it here")

    def __init__(self, core: EngineCore, session: Session) -> None:
        self._core = core
        self.session = session

    @property
    def position(self) -> int:
        """Tokens so far; where the next one goes."""
        return self.session.position

    @property
    def tokens(self) -> list[int]:
        """A copy of the tokens so far."""
        return self.session.tokens

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """Logits of the last position, float32 [n_vocab]; None unless a call has just computed them."""
        return self.session.logits

    @property
    def sampler(self) -> Sampler | None:
        """Sampler of `sample`; see `Session.sampler`."""
        return self.session.sampler

    @sampler.setter
    def sampler(self, sampler: Sampler | None) -> None:
        self.session.sampler = sampler

    @property
    def closed(self) -> bool:
        return self.session.closed

    async def prefill(self, tokens: SequenceOf[int]) -> NDArray[np.float32]:
        """`Session.prefill`."""
        return await self._call(lambda: self.session.prefill(tokens))

    async def forward_prefill(self, tokens: SequenceOf[int], pos: int) -> NDArray[np.float32]:
        """`Session.forward_prefill`."""
        return await self._call(lambda: self.session.forward_prefill(tokens, pos))

    async def forward_logits(
        self, tokens: SequenceOf[int], pos: int, *, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """`Session.forward_logits`."""
        return await self._call(lambda: self.session.forward_logits(tokens, pos, out=out))

    async def forward_decode(self, token: int, pos: int) -> NDArray[np.float32]:
        """`Session.forward_decode`."""
        return await self._call(lambda: self.session.forward_decode(token, pos))

    async def forward_one(self, token: int) -> NDArray[np.float32]:
        """`Session.forward_one`."""
        return await self._call(lambda: self.session.forward_one(token))

    async def sample(
        self,
        sampler: SamplerLike = None,
        *,
        logits_processors: SequenceOf[LogitsProcessor] | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> int:
        """`Session.sample`."""
        return await self._call(lambda: self.session.sample(sampler, logits_processors=logits_processors, **sampling))

    async def fork(self) -> AsyncSession:
        """`Session.fork`."""
        return AsyncSession(self._core, await elsewhere(self._core, self.session.fork))

    truncate = as_coroutine(Session.truncate, "session")
    reset = as_coroutine(Session.reset, "session")
    snapshot = as_coroutine(Session.snapshot, "session")
    snapshot_bytes = as_coroutine(Session.snapshot_bytes, "session")
    close = as_coroutine(Session.close, "session")

    async def _call(self, call: Callable[[], T]) -> T:
        return await ended(self._core, self.session.cancel, call)

    async def __aenter__(self) -> Self:
        self.session.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncSession of {self.session!r}>"


class AsyncBeamRounds:
    """`BeamRounds` for coroutines: the beams that are followed after each round, for `async for`.

    One task at a time asks for them. Leaving early (`aclose`, the end of an `async with` block, dropping it, cancelling
    the task that waits) ends the search.
    """

    __reduce_ex__ = stays_here("send snapshot_bytes() instead, with which engine.resume() goes on")

    def __init__(self, core: EngineCore, rounds: BeamRounds) -> None:
        self._core = core
        self._rounds = rounds

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[BeamHypothesis]:
        found = await ended(self._core, self._rounds.close, lambda: next(self._rounds, None))
        if found is None:
            raise StopAsyncIteration
        return found

    async def results(self) -> list[BeamHypothesis]:
        """`BeamRounds.results`."""
        return await ended(self._core, self._rounds.close, self._rounds.results)

    async def snapshot(self, path: Path | None = None, *, compress: bool = False) -> bytes | None:
        """`BeamRounds.snapshot`."""
        return await elsewhere(self._core, self._rounds.snapshot, path, compress=compress)

    async def snapshot_bytes(self, *, compress: bool = False) -> bytes:
        """`snapshot` without a path."""
        return await elsewhere(self._core, self._rounds.snapshot_bytes, compress=compress)

    async def aclose(self) -> None:
        """Ends the search; further calls do nothing."""
        self._rounds.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._rounds.close()
