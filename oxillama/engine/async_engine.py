"""`AsyncEngine`: the engine for programs that run in an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Iterable
from collections.abc import Sequence as SequenceOf
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from oxillama.checks import check_bool
from oxillama.config import EngineOptions, ModelSource
from oxillama.engine.async_batch import AsyncBatch
from oxillama.engine.bell import AsyncChunks, Call, CoroutineBell
from oxillama.engine.embedding import EmbedPooling
from oxillama.engine.engine import Engine
from oxillama.engine.pipeline import MAX_IN_FLIGHT, Errors, Pipeline, Progress, read_settings
from oxillama.engine.prompts import Messages, Tools, check_callback, is_single_prompt, named_prompts
from oxillama.engine.request import Outbox
from oxillama.engine.results import BatchFailure, Chunk, Completion
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

__all__ = ["AsyncEngine"]

T = TypeVar("T")

# A prompt's tokens are made in the event loop up to this many characters: what takes longer than handing it to
# another thread and back, a millisecond on a busy machine, is done there.
INLINE_CHARACTERS = 2000


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
        ids = await asyncio.to_thread(engine._chat_ids, messages, tools, chat_template, options)
        if not check_bool("stream", stream):
            return await self.generate(ids, on_token=on_token, **options)
        if on_token is not None:
            raise ConfigError("on_token is for stream=False; with stream=True iterate over the chunks")
        return self.stream(ids, **options)

    @overload
    def batch(
        self,
        prompts: Iterable[Prompt] | AsyncIterable[Prompt],
        *,
        ordered: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        errors: Literal["raise"] = "raise",
        progress: Progress = False,
        **options: Unpack[StreamOptions],
    ) -> AsyncBatch[Completion]: ...

    @overload
    def batch(
        self,
        prompts: Iterable[Prompt] | AsyncIterable[Prompt],
        *,
        ordered: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        errors: Errors,
        progress: Progress = False,
        **options: Unpack[StreamOptions],
    ) -> AsyncBatch[Completion | BatchFailure]: ...

    def batch(
        self,
        prompts: Iterable[Prompt] | AsyncIterable[Prompt],
        *,
        ordered: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        errors: Errors = "raise",
        progress: Progress = False,
        **options: Unpack[StreamOptions],
    ) -> AsyncBatch[Any]:
        """Continues any number of prompts, computed together, as `Engine.batch` does; for `async for`.

        Prompts, also of an asynchronous iterable, are taken in the event loop as they are needed. The engine computes
        those that were taken while the task does something else.
        """
        settings = read_settings(prompts, ordered, max_in_flight, errors, progress)
        parsed = read_options("batch", options)
        core = self.engine._core
        core.check_generates()
        pipeline = Pipeline(core, self.engine._maker, parsed, settings)
        return AsyncBatch(core, pipeline, prompts, lambda p: _made(_size([p], parsed), lambda: pipeline.add(p)))

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
            _size([input] if single else input),
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
        size = _size([prompt for _, prompt in prompts], options)
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


def _size(prompts: Any, options: TextOptions | None = None) -> int:
    """Characters to make tokens of; a grammar takes longer than those that are made at once."""
    grammar = options is not None and (options.chain.config.constraint or options.tool_use) is not None
    return grammar * (INLINE_CHARACTERS + 1) + sum(len(p) for p in prompts if isinstance(p, str))


async def _made(size: int, make: Callable[[], T]) -> T:
    """make(), in another thread if that is a matter of more than INLINE_CHARACTERS."""
    return make() if size <= INLINE_CHARACTERS else await asyncio.to_thread(make)


async def _finish(call: Call[Any]) -> None:
    try:
        await call.finish()
    finally:
        call.leave()
