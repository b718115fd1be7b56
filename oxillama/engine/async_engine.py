"""`AsyncEngine`: the engine for programs that run in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterable, Callable, Iterable
from collections.abc import Sequence as SequenceOf
from types import TracebackType
from typing import Any, Literal, Self, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_bool, check_keywords
from oxillama._util.signatures import takes
from oxillama.config import EngineOptions, ModelSource
from oxillama.core.async_requests import (
    INLINE_CHARACTERS,
    AsyncBatch,
    AsyncChunks,
    Call,
    CoroutineBell,
    elsewhere,
    made,
    size_of,
)
from oxillama.core.batch import BatchSettings, Errors, batch_runner
from oxillama.core.beam_rounds import BeamKeywords, BeamSearchOptions, start_search
from oxillama.core.beam_search import BeamOptions, BeamSearchConfig
from oxillama.core.chat import chat_prompt, infill_prompt
from oxillama.core.embedding import (
    Denoising,
    DiffuseOptions,
    Embeddings,
    EmbedOptions,
    EmbedPooling,
    RankedDocument,
    RerankOptions,
    choose_pooling,
    embedding_requests,
    logits_request,
    ranking_requests,
)
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.options import (
    BatchOptions,
    ChatOptions,
    GenerateOptions,
    InfillOptions,
    Prompt,
    RequestOptions,
    StreamOptions,
    TextOptions,
    read_options,
)
from oxillama.core.prompts import Messages, check_callback, infill_ids, plain, read_prompt, read_prompts
from oxillama.core.request import ResultQueue
from oxillama.core.results import BatchFailure, BeamHypothesis, Completion
from oxillama.core.text_stream import completions_of, shaped
from oxillama.engine.engine import Engine
from oxillama.errors import ConfigError
from oxillama.sampler_config import CONSTRAINTS
from oxillama.sampling.denoising import DiffusionSettings
from oxillama.snapshot.restore import restored
from oxillama.snapshot.resume import ResumeOptions, resume_async, resumed

__all__ = ["AsyncEngine"]

Prompts = Iterable[Prompt] | AsyncIterable[Prompt]


class AsyncEngine:
    """A loaded model for coroutines, of any number of tasks and event loops. Use with `async with`, or call `close`.

    The calls are those of `Engine`, take the same options, raise the same errors and give the same results to the bit;
    requests of coroutines and of threads share the model's steps. These are taken by one thread of the engine's own,
    which is there while there is something to do for coroutines, so that no call blocks the event loop. Cancelling a
    task ends its request: the blocks are free at once, or when the step under way ends. A `batch` alone is left as it
    was, and goes on when it is asked again.

    engine: the `Engine`, for all that takes no time (`tokenize`, `n_vocab`, ...). Its other calls work from coroutines
    and callbacks too, but block the event loop until they are done.
    """

    def __init__(self, engine: Engine) -> None:
        """Wraps a loaded engine. Raises ConfigError for anything else."""
        if not isinstance(engine, Engine):
            raise ConfigError(f"engine must be a loaded Engine, not {type(engine).__name__}; see AsyncEngine.load()")
        self.engine = engine
        self._core = engine.context.core

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.engine,)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @classmethod
    async def load(cls, model_path: ModelSource = None, **fields: Unpack[EngineOptions]) -> Self:
        """Loads a model as `Engine.load` does, in another thread."""
        return cls(await asyncio.to_thread(Engine.load, model_path, **fields))

    # ---- text

    # A text is also a sequence of texts to the type system; the first signature that fits counts.
    @overload
    async def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, *, n: None = None, **options: Unpack[GenerateOptions]
    ) -> Completion: ...

    @overload
    async def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, *, n: int, **options: Unpack[GenerateOptions]
    ) -> list[Completion]: ...

    @overload
    async def generate(
        self, prompt: SequenceOf[Prompt], *, n: None = None, **options: Unpack[GenerateOptions]
    ) -> list[Completion]: ...

    @overload
    async def generate(
        self, prompt: SequenceOf[Prompt], *, n: int, **options: Unpack[GenerateOptions]
    ) -> list[list[Completion]]: ...

    @takes(GenerateOptions, TextOptions, rest=RequestOptions)
    async def generate(self, prompt: Any, *, n: int | None = None, **options: Any) -> Any:
        """Continues a prompt, or a list of prompts together, as `Engine.generate` does.

        `on_token` runs in the event loop; what it returns is awaited if it can be, and what it raises ends this call
        and nothing else.
        """
        on_token = options.pop("on_token", None)
        parsed = read_options("generate", {"n": n, **options}, self.engine.context.factory.default_chain)
        if on_token is not None:
            check_callback(on_token)
        self._core.check_generates()
        single, named = read_prompts("prompt", prompt)
        found = await self._complete(named, parsed, on_token, indexed=not single or n is not None)
        return shaped(found, n, single)

    @takes(StreamOptions, TextOptions, rest=RequestOptions)
    def stream(self, prompt: Prompt, *, n: int | None = None, **options: Unpack[StreamOptions]) -> AsyncChunks:
        """Continues one prompt, piece by piece, as `Engine.stream` does; for `async for`.

        Errors in the options are raised here, those in the prompt by the first chunk that is asked for.
        """
        parsed = read_options("stream", {"n": n, **options}, self.engine.context.factory.default_chain)
        self._core.check_generates()
        one = read_prompt("prompt", prompt, "stream() takes")
        return AsyncChunks(lambda: self._begin([("prompt", one)], parsed), self.engine.context.snapshots)

    @takes(DiffuseOptions, DiffusionSettings)
    async def diffuse(self, prompt: Prompt, **options: Unpack[DiffuseOptions]) -> Completion:
        """Continues a prompt by denoising; see `Engine.diffuse`. on_step is called in another thread."""
        context, given = self.engine.context, plain("prompt", prompt)
        denoising = await made(size_of([given]), lambda: Denoising(context, given, options))
        rounds = denoising.rounds(lambda: CoroutineBell(self._core.loop))
        while (found := await asyncio.to_thread(next, rounds, None)) is not None:
            requests, outbox = found
            await _finish(Call(self._core, requests, outbox, cast(CoroutineBell, outbox.bell)))
        return denoising.result()

    @overload
    async def chat(
        self, messages: Messages, *, stream: Literal[False] = False, n: None = None, **options: Unpack[ChatOptions]
    ) -> Completion: ...

    @overload
    async def chat(
        self, messages: Messages, *, stream: Literal[False] = False, n: int, **options: Unpack[ChatOptions]
    ) -> list[Completion]: ...

    @overload
    async def chat(
        self, messages: Messages, *, stream: Literal[True], n: int | None = None, **options: Unpack[ChatOptions]
    ) -> AsyncChunks: ...

    @overload
    async def chat(
        self, messages: Messages, *, stream: bool, n: int | None = None, **options: Unpack[ChatOptions]
    ) -> Completion | list[Completion] | AsyncChunks: ...

    @takes(ChatOptions, chat_prompt, rest=StreamOptions)
    async def chat(self, messages: Messages, *, stream: bool = False, n: int | None = None, **options: Any) -> Any:
        """Answers messages as `Engine.chat` does: `async for chunk in await engine.chat(messages, stream=True)`."""
        ids = await asyncio.to_thread(chat_prompt, self.engine.context, messages, options)
        return await self._answer(ids, stream, n, options)

    @overload
    async def infill(
        self, prefix: str, suffix: str, *, stream: Literal[False] = ..., n: None = ..., **options: Unpack[InfillOptions]
    ) -> Completion: ...

    @overload
    async def infill(
        self, prefix: str, suffix: str, *, stream: Literal[False] = False, n: int, **options: Unpack[InfillOptions]
    ) -> list[Completion]: ...

    @overload
    async def infill(
        self, prefix: str, suffix: str, *, stream: Literal[True], n: int | None = None, **options: Unpack[InfillOptions]
    ) -> AsyncChunks: ...

    @overload
    async def infill(
        self, prefix: str, suffix: str, *, stream: bool, n: int | None = None, **options: Unpack[InfillOptions]
    ) -> Completion | list[Completion] | AsyncChunks: ...

    @takes(InfillOptions, infill_ids, rest=StreamOptions)
    async def infill(
        self, prefix: str, suffix: str, *, stream: bool = False, n: int | None = None, **options: Any
    ) -> Any:
        """The text between two others, as `Engine.infill` gives it."""
        size = size_of([prefix, suffix])
        ids = await made(size, lambda: infill_prompt(self.engine.context, prefix, suffix, options))
        return await self._answer(ids, stream, n, options)

    async def _answer(self, ids: list[int], stream: bool, n: int | None, options: dict[str, Any]) -> Any:
        if not check_bool("stream", stream):
            return await self.generate(ids, n=n, **options)
        if options.pop("on_token", None) is not None:
            raise ConfigError("on_token is for stream=False; with stream=True iterate over the chunks")
        return self.stream(ids, n=n, **options)

    @takes(BeamSearchOptions, BeamOptions, rest=BeamKeywords)
    async def beam_search(
        self, prompt: Prompt, config: BeamSearchConfig | None = None, **options: Unpack[BeamSearchOptions]
    ) -> list[BeamHypothesis]:
        """The likeliest continuations of a prompt, as `Engine.beam_search` finds them."""
        core, factory = self._core, self.engine.context.factory
        bell = CoroutineBell(core.loop)
        search = await made(
            INLINE_CHARACTERS + 1 if any(map(options.get, CONSTRAINTS)) else size_of([plain("prompt", prompt)]),
            lambda: start_search(core, factory, prompt, config, options, bell),
        )
        call = Call(core, search.beams, search.outbox, bell)
        try:
            await bell.wait(lambda: not search.outbox.n_open)
        finally:
            call.leave()
        return search.results()

    # ---- snapshots: files and models are read and written in another thread

    async def snapshot(self, path: str | os.PathLike[str], **options: Any) -> None:
        """`Engine.snapshot`."""
        await elsewhere(self._core, self.engine.snapshot, path, **options)

    async def snapshot_bytes(self, **options: Any) -> bytes:
        """`Engine.snapshot_bytes`."""
        return await elsewhere(self._core, self.engine.snapshot_bytes, **options)

    @classmethod
    async def restore(
        cls, path: str | os.PathLike[str], model_path: ModelSource | Engine = None, **options: Any
    ) -> Self:
        """`Engine.restore`."""
        return await cls._restored(path, model_path, options)

    @classmethod
    async def restore_bytes(
        cls, data: bytes | bytearray | memoryview, model_path: ModelSource | Engine = None, **options: Any
    ) -> Self:
        """`Engine.restore_bytes`."""
        return await cls._restored(data, model_path, options)

    @classmethod
    async def _restored(cls, place: Any, model_path: ModelSource | Engine, options: dict[str, Any]) -> Self:
        return cls(await asyncio.to_thread(lambda: restored(Engine, place, model_path, **options)))

    @takes(ResumeOptions, resumed)
    async def resume(
        self, snapshot: str | os.PathLike[str] | bytes | bytearray | memoryview, **options: Unpack[ResumeOptions]
    ) -> AsyncChunks:
        """`Engine.resume` of a request for text: its further chunks, for `async for`.

        Raises SnapshotFormatError for a session, which coroutines have none of: `engine.resume` gives it.
        """
        check_keywords("resume", options, ResumeOptions.__annotations__)
        return await resume_async(self.engine.context, snapshot, dict(options))

    # ---- life

    @property
    def closed(self) -> bool:
        return self.engine.closed

    async def close(self) -> None:
        """Ends what is under way, of threads too, with EngineClosedError, and frees the model when the present step has
        ended. Further calls do nothing.
        """
        core = self._core
        bell = CoroutineBell(core.loop)
        core.loop.check_outside()
        core.shut(bell.ring)
        await bell.wait(lambda: core.closed)
        core.loop.stop_worker()
        self.engine.close()  # adapters, too

    async def __aenter__(self) -> Self:
        self._core.check_open()
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
    ) -> Call[GenerationRequest]:
        core, factory = self._core, self.engine.context.factory
        bell = CoroutineBell(core.loop)
        outbox = ResultQueue(len(prompts) * options.n_each, bell, whole=whole)
        size = size_of([prompt for _, prompt in prompts], options)
        requests = await made(size, lambda: factory.requests(prompts, options, outbox))
        return Call(core, requests, outbox, bell)

    async def _complete(
        self,
        prompts: list[tuple[str, Any]],
        options: TextOptions,
        on_token: Callable[..., object] | None,
        indexed: bool,
    ) -> list[Completion]:
        call = await self._begin(prompts, options, whole=on_token is None)
        pieces = []
        try:
            while (found := await call.next()) is not None:
                pieces.append(found)
                index, chunk = found
                if on_token is not None and chunk.text:
                    said = on_token(index, chunk.text) if indexed else on_token(chunk.text)
                    if inspect.isawaitable(said):
                        await said
        finally:
            call.leave()
        return completions_of(call.requests, pieces, options.n_each)

    # ---- many prompts

    @overload
    def batch(
        self, prompts: Prompts, *, errors: Literal["raise"] = "raise", n: None = None, **options: Unpack[BatchOptions]
    ) -> AsyncBatch[Completion]: ...

    @overload
    def batch(
        self, prompts: Prompts, *, errors: Literal["raise"] = "raise", n: int, **options: Unpack[BatchOptions]
    ) -> AsyncBatch[list[Completion]]: ...

    @overload
    def batch(
        self, prompts: Prompts, *, errors: Errors, n: None = None, **options: Unpack[BatchOptions]
    ) -> AsyncBatch[Completion | BatchFailure]: ...

    @overload
    def batch(
        self, prompts: Prompts, *, errors: Errors, n: int, **options: Unpack[BatchOptions]
    ) -> AsyncBatch[list[Completion] | BatchFailure]: ...

    @takes(BatchOptions, BatchSettings, rest=StreamOptions)
    def batch(
        self, prompts: Prompts, *, errors: Errors = "raise", n: int | None = None, **options: Unpack[BatchOptions]
    ) -> AsyncBatch[Any]:
        """Continues any number of prompts, computed together, as `Engine.batch` does; for `async for`.

        Prompts, also of an asynchronous iterable, are taken in the event loop as they are needed. The engine computes
        those that were taken while the task does something else. A task that is cancelled while it waits
        (`asyncio.wait_for`) leaves the batch as it was; `aclose` or dropping it ends what is under way.
        """
        given = {"errors": errors, "n": n, **options}
        return AsyncBatch(self._core, batch_runner(self._core, self.engine.context.factory, prompts, given), prompts)

    # ---- numbers of whole texts

    @overload
    async def embed(
        self, input: Prompt, *, pooling: str | None = None, **options: Unpack[EmbedOptions]
    ) -> NDArray[Any]: ...

    @overload
    async def embed(
        self, input: SequenceOf[Prompt], *, pooling: EmbedPooling, **options: Unpack[EmbedOptions]
    ) -> NDArray[Any]: ...

    @overload
    async def embed(
        self, input: SequenceOf[Prompt], *, pooling: str | None = None, **options: Unpack[EmbedOptions]
    ) -> Embeddings: ...

    @takes(EmbedOptions, choose_pooling)
    async def embed(self, input: Any, *, pooling: str | None = None, **options: Unpack[EmbedOptions]) -> Embeddings:
        """Pooled hidden states of a text, or of each of a list, as `Engine.embed` gives them."""
        bell = CoroutineBell(self._core.loop)
        _, named = read_prompts("input", input)
        size = size_of([prompt for _, prompt in named])
        requests, outbox, results = await made(
            size, lambda: embedding_requests(self.engine.context, input, pooling, options, bell)
        )
        await _finish(Call(self._core, requests, outbox, bell))
        return results()

    @takes(RerankOptions, ranking_requests)
    async def rerank(
        self, query: str, documents: SequenceOf[str], **options: Unpack[RerankOptions]
    ) -> list[RankedDocument]:
        """The documents, best first, as `Engine.rerank` gives them."""
        bell = CoroutineBell(self._core.loop)
        texts = plain("documents", documents)
        size = size_of(texts) if isinstance(texts, list) else 0
        requests, outbox, results = await made(
            size, lambda: ranking_requests(self.engine.context, query, texts, options, bell)
        )
        await _finish(Call(self._core, requests, outbox, bell))
        return results()

    async def forward_logits(
        self, ids: SequenceOf[int], *, decoder_tokens: SequenceOf[int] | None = None, lora: Any = None
    ) -> NDArray[np.float32]:
        """Logits of every position, float32 [len(ids), n_vocab], as `Engine.forward_logits` gives them."""
        bell = CoroutineBell(self._core.loop)
        request = logits_request(self.engine.context, ids, decoder_tokens, lora, bell)
        await _finish(Call(self._core, [request], request.outbox, bell))
        return request.out


async def _finish(call: Call[Any]) -> None:
    try:
        await call.finish()
    finally:
        call.leave()
