"""`AsyncEngine`: the engine for programs that run in an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from collections.abc import Sequence as SequenceOf
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from oxillama.checks import check_bool
from oxillama.config import EngineOptions, ModelSource
from oxillama.engine.bell import Call, CoroutineBell
from oxillama.engine.embedding import EmbedPooling
from oxillama.engine.engine import Engine
from oxillama.engine.prompts import Messages, Tools, check_callback, is_single_prompt, named_prompts
from oxillama.engine.request import Outbox
from oxillama.engine.results import Chunk, Completion
from oxillama.engine.stream import TextRequest
from oxillama.engine.texts import (
    GenerateOptions,
    Prompt,
    StreamOptions,
    TextOptions,
    completion_of,
    read_options,
)
from oxillama.errors import ConfigError

__all__ = ["AsyncChunks", "AsyncEngine"]

T = TypeVar("T")

# A prompt's tokens are made in the event loop up to this many characters: what takes longer than handing it to
# another thread and back, a millisecond on a busy machine, is done there.
INLINE_CHARACTERS = 2000


class AsyncChunks:
    """The chunks of one completion, for `async for`; one task at a time reads them.

    The engine goes on whether they are read or not, so that a slow reader keeps nothing from others: what waits for it
    is at most the rest of its own completion. Leaving early (`aclose`, the end of an `async with` block, dropping it,
    cancelling the task that waits) ends the request at once.
    """

    def __init__(self, start: Callable[[], Awaitable[Call[TextRequest]]]) -> None:
        self._start = start
        self._call: Call[TextRequest] | None = None
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


class AsyncEngine:
    """A loaded model for coroutines, of any number of tasks and event loops. Use with `async with`, or call `close`.

    The calls are those of `Engine`, take the same options, raise the same errors and give the same results to the bit;
    requests of coroutines and of threads share the model's steps. These are taken by one thread of the engine's own,
    which is there while there is something to do for coroutines, so that no call blocks the event loop. Cancelling a
    task ends its request: the blocks are free at once, or when the step under way ends.

    engine: the `Engine`, for all that takes no time (`tokenize`, `n_vocab`, ...). Its other calls work from coroutines
    and callbacks too, but block the event loop until they are done.
    """

    def __init__(self, engine: Engine) -> None:
        """Wraps a loaded engine. Raises ConfigError for anything else."""
        if not isinstance(engine, Engine):
            raise ConfigError(f"engine must be a loaded Engine, not {type(engine).__name__}; see AsyncEngine.load()")
        self.engine = engine

    @classmethod
    async def load(cls, model_path: ModelSource = None, **fields: Unpack[EngineOptions]) -> Self:
        """Loads a model as `Engine.load` does, in another thread."""
        return cls(await asyncio.to_thread(Engine.load, model_path, **fields))

    # ---- text

    # A text is also a sequence of texts to the type system; the first signature that fits counts.
    @overload
    async def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> Completion: ...

    @overload
    async def generate(self, prompt: SequenceOf[Prompt], **options: Unpack[GenerateOptions]) -> list[Completion]: ...

    async def generate(
        self, prompt: Prompt | SequenceOf[Prompt], **options: Unpack[GenerateOptions]
    ) -> Completion | list[Completion]:
        """Continues a prompt, or a list of prompts together, as `Engine.generate` does.

        `on_token` runs in the event loop; what it returns is awaited if it can be, and what it raises ends this call
        and nothing else.
        """
        on_token = options.pop("on_token", None)
        parsed = read_options("generate", options)
        check_callback(on_token)
        self.engine._core.check_generates()
        single = is_single_prompt("prompt", prompt)
        named = [("prompt", prompt)] if single else named_prompts("prompt", prompt)
        found = await self._complete(named, parsed, on_token, indexed=not single)
        return found[0] if single else found

    def stream(self, prompt: Prompt, **options: Unpack[StreamOptions]) -> AsyncChunks:
        """Continues one prompt, piece by piece, as `Engine.stream` does; for `async for`.

        Errors in the options are raised here, those in the prompt by the first chunk that is asked for.
        """
        parsed = read_options("stream", options)
        self.engine._core.check_generates()
        if not is_single_prompt("prompt", prompt):
            raise ConfigError("stream() takes one prompt, not a list of prompts")
        return AsyncChunks(lambda: self._begin([("prompt", prompt)], parsed))

    @overload
    async def chat(self, messages: Messages, *, stream: Literal[False] = False, **options: Any) -> Completion: ...

    @overload
    async def chat(self, messages: Messages, *, stream: Literal[True], **options: Any) -> AsyncChunks: ...

    @overload
    async def chat(self, messages: Messages, *, stream: bool, **options: Any) -> Completion | AsyncChunks: ...

    async def chat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        tools: Tools = None,
        chat_template: str | None = None,
        on_token: Callable[[str], object] | None = None,
        **options: Any,
    ) -> Completion | AsyncChunks:
        """Answers messages as `Engine.chat` does: `async for chunk in await engine.chat(messages, stream=True)`."""
        engine = self.engine
        engine._core.check_generates()
        ids = await asyncio.to_thread(engine.chat_tokens, messages, tools=tools, chat_template=chat_template)
        if not check_bool("stream", stream):
            return await self.generate(ids, on_token=on_token, **options)
        if on_token is not None:
            raise ConfigError("on_token is for stream=False; with stream=True iterate over the chunks")
        return self.stream(ids, **options)

    # ---- numbers

    @overload
    async def embed(
        self, input: Prompt, *, pooling: str | None = None, normalize: bool = True
    ) -> NDArray[np.float32]: ...

    @overload
    async def embed(
        self, input: SequenceOf[Prompt], *, pooling: EmbedPooling, normalize: bool = True
    ) -> NDArray[np.float32]: ...

    @overload
    async def embed(
        self, input: SequenceOf[Prompt], *, pooling: str | None = None, normalize: bool = True
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]: ...

    async def embed(
        self, input: Prompt | SequenceOf[Prompt], *, pooling: str | None = None, normalize: bool = True
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Pooled hidden states of a text, or of each of a list, as `Engine.embed` gives them."""
        core = self.engine._core
        bell = CoroutineBell(core.loop)
        single = is_single_prompt("input", input)
        requests, outbox, results = await _made(
            n_characters([input] if single else input),
            lambda: self.engine._embedding(input, pooling, normalize, bell),
        )
        await _finish(Call(core, requests, outbox, bell))
        return results()

    async def forward_logits(self, ids: SequenceOf[int]) -> NDArray[np.float32]:
        """Logits of every position, float32 [len(ids), n_vocab], as `Engine.forward_logits` gives them."""
        core = self.engine._core
        bell = CoroutineBell(core.loop)
        request = self.engine._logits(ids, bell)
        await _finish(Call(core, [request], request.outbox, bell))
        return request.out

    # ---- life

    @property
    def closed(self) -> bool:
        return self.engine.closed

    async def close(self) -> None:
        """Ends what is under way, of threads too, with EngineClosedError, and frees the model.

        Waits for the step under way. Further calls do nothing.
        """
        core = self.engine._core
        bell = CoroutineBell(core.loop)
        core.shut(bell.ring)
        await bell.wait(lambda: core.closed)
        core.loop.dismiss()

    async def __aenter__(self) -> Self:
        self.engine._core.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncEngine of {self.engine!r}>"

    # ---- how it is done

    async def _begin(
        self, prompts: list[tuple[str, Any]], options: TextOptions, *, whole: bool = False
    ) -> Call[TextRequest]:
        core, maker = self.engine._core, self.engine._maker
        bell = CoroutineBell(core.loop)
        outbox = Outbox(len(prompts), bell, whole=whole)
        size = INLINE_CHARACTERS + 1 if options.chain.config.grammar else n_characters(p for _, p in prompts)
        requests = await _made(size, lambda: maker.requests(prompts, options, outbox))
        return Call(core, requests, outbox, bell)

    async def _complete(
        self,
        prompts: list[tuple[str, Any]],
        options: TextOptions,
        on_token: Callable[..., object] | None,
        indexed: bool,
    ) -> list[Completion]:
        call = await self._begin(prompts, options, whole=on_token is None)
        pieces: list[list[Chunk]] = [[] for _ in prompts]
        try:
            while (found := await call.next()) is not None:
                index, chunk = found
                pieces[index].append(chunk)
                if on_token is not None and chunk.text:
                    said = on_token(index, chunk.text) if indexed else on_token(chunk.text)
                    if inspect.isawaitable(said):
                        await said
        finally:
            call.leave()
        return [completion_of(request, of) for request, of in zip(call.requests, pieces, strict=True)]


def n_characters(prompts: Any) -> int:
    """Characters to make tokens of."""
    return sum(len(prompt) for prompt in prompts if isinstance(prompt, str))


async def _made(size: int, make: Callable[[], T]) -> T:
    """make(), in another thread if that is a matter of more than INLINE_CHARACTERS."""
    return make() if size <= INLINE_CHARACTERS else await asyncio.to_thread(make)


async def _finish(call: Call[Any]) -> None:
    try:
        await call.finish()
    finally:
        call.leave()
