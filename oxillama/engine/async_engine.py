"""`AsyncEngine`: the engine for programs that run in an event loop."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable
from collections.abc import Sequence as SequenceOf
from types import TracebackType
from typing import Any, Literal, Self, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_flag, check_keywords
from oxillama._util.places import Path
from oxillama._util.signatures import takes
from oxillama._util.threads import in_thread
from oxillama.config import EngineOptions, ModelSource, SamplerConfig, SamplingOptions
from oxillama.core import scoring
from oxillama.core.async_requests import (
    INLINE_CHARACTERS,
    AsyncBatch,
    AsyncBeamRounds,
    AsyncChunks,
    AsyncSession,
    Call,
    CoroutineBell,
    as_coroutine,
    made,
    size_of,
)
from oxillama.core.batch import BatchSettings, Errors, batch_runner
from oxillama.core.beam_rounds import BeamKeywords, BeamSearchOptions, start_search
from oxillama.core.beam_search import BeamOptions, BeamSearchConfig
from oxillama.core.chat import chat_call, chat_request, infill_request
from oxillama.core.context import LoadedEngine
from oxillama.core.denoising import Denoising, DiffuseOptions
from oxillama.core.embedding import (
    Embeddings,
    EmbedOptions,
    EmbedPooling,
    choose_pooling,
    embedding_requests,
    logits_request,
)
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.options import (
    BatchOptions,
    ChatOptions,
    GenerateOptions,
    InfillOptions,
    Prompt,
    PromptOptions,
    RequestOptions,
    StreamOptions,
    TextOptions,
    read_options,
)
from oxillama.core.prompts import Messages, check_callback, infill_ids, plain, read_prompt, read_prompts
from oxillama.core.ranking import RankedDocument, RerankOptions, ranking_requests
from oxillama.core.request import ResultQueue
from oxillama.core.results import BatchFailure, BeamHypothesis, Completion
from oxillama.core.session import SamplerLike, SessionOptions, session_options
from oxillama.core.text_stream import completions_of, shaped
from oxillama.engine.engine import Engine
from oxillama.errors import ConfigError
from oxillama.lora import Lora
from oxillama.sampler_config import CONSTRAINTS
from oxillama.snapshot.info import SnapshotInfo
from oxillama.snapshot.restore import RestoreOptions, restored
from oxillama.snapshot.resume import ResumeOptions, resume_async, resumed
from oxillama.text_settings import DiffusionSettings

__all__ = ["AsyncEngine"]

Prompts = Iterable[Prompt] | AsyncIterable[Prompt]


class AsyncEngine:
    """A loaded model for coroutines, of any number of tasks and event loops. Use with `async with`, or call `close`.

    The calls are those of `Engine`, take the same options, raise the same errors and give the same results to the bit;
    requests of coroutines and of threads share the model's steps. These are taken by one thread of the engine's own,
    which is there while there is something to do for coroutines, so that no call blocks the event loop. Cancelling a
    task ends its request: the blocks are free at once, or when the step under way ends. A `batch` alone is left as it
    was, and goes on when it is asked again.

    Those that give something to iterate over or to use with `async with` (`stream`, `batch`, `session`, `beam_rounds`)
    are no coroutines themselves, and neither is `is_eos`. A `conversation` is had from `engine` alone.

    engine: the `Engine`, for its attributes (`n_vocab`, `tokenizer`, ...). Its calls work from coroutines and callbacks
    too, but block the event loop until they are done.
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
        return cls(await in_thread(Engine.load, model_path, **fields))

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
        while (found := await in_thread(next, rounds, None)) is not None:
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

    @takes(ChatOptions, chat_call, rest=StreamOptions)
    async def chat(self, messages: Messages, *, stream: bool = False, n: int | None = None, **options: Any) -> Any:
        """Answers messages as `Engine.chat` does: `async for chunk in await engine.chat(messages, stream=True)`."""
        ids, own = await in_thread(chat_request, self.engine.context, messages, options)
        return await self._answer(ids, own, stream, n)

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
        ids, own = await made(size, lambda: infill_request(self.engine.context, prefix, suffix, options))
        return await self._answer(ids, own, stream, n)

    @takes(PromptOptions, chat_call)
    async def chat_tokens(self, messages: Messages, **options: Unpack[PromptOptions]) -> list[int]:
        """Token ids of the prompt that `chat` makes of messages."""
        return await in_thread(self.engine.chat_tokens, messages, **options)

    async def infill_tokens(self, prefix: str, suffix: str, *, suffix_first: bool = False) -> list[int]:
        """The prompt that `infill` makes of the texts around a gap, as token ids, for `batch` and others."""
        call = self.engine.infill_tokens
        return await made(size_of([prefix, suffix]), lambda: call(prefix, suffix, suffix_first=suffix_first))

    async def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text, as `Engine.tokenize` gives them."""
        return await made(size_of([text]), lambda: self.engine.tokenize(text, add_special, parse_special))

    async def detokenize(self, ids: Iterable[int]) -> str:
        """Text of token ids. Raises TokenizerError for ids out of range."""
        given = list(ids)
        return await made(len(given), lambda: self.engine.detokenize(given))

    def is_eos(self, token: int) -> bool:
        """Whether a token ends generation. Raises TokenizerError for an id out of range."""
        return self.engine.is_eos(token)

    async def _answer(self, ids: list[int], options: dict[str, Any], stream: bool, n: int | None) -> Any:
        if not check_flag("stream", stream):
            return await self.generate(ids, n=n, **options)
        if options.get("on_token") is not None:
            raise ConfigError("on_token is for stream=False; with stream=True iterate over the chunks")
        return self.stream(ids, n=n, **{name: value for name, value in options.items() if name != "on_token"})

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

    @takes(BeamSearchOptions, BeamOptions, rest=BeamKeywords)
    def beam_rounds(
        self, prompt: Prompt, config: BeamSearchConfig | None = None, **options: Unpack[BeamSearchOptions]
    ) -> AsyncBeamRounds:
        """`beam_search` round by round, which can be saved meanwhile; for `async for`."""
        return AsyncBeamRounds(self._core, self.engine.beam_rounds(prompt, config, **options))

    # ---- the engine's own session, and others

    @takes(SessionOptions, session_options)
    def session(self, **options: Unpack[SessionOptions]) -> AsyncSession:
        """A session of one's own, beside the engine's and as many others as are wanted; see `Engine.session`."""
        return AsyncSession(self._core, self.engine.session(**options))

    async def fork(self) -> AsyncSession:
        """A session of one's own that begins with the tokens of the engine's; see `Session.fork`."""
        return await self._own.fork()

    @property
    def _own(self) -> AsyncSession:
        return AsyncSession(self._core, self.engine.context.session)

    @property
    def position(self) -> int:
        """Tokens in the engine's session so far."""
        return self.engine.position

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """Logits of the session's last position, float32 [n_vocab]; None unless they have just been computed."""
        return self.engine.logits

    async def prefill(self, tokens: SequenceOf[int]) -> NDArray[np.float32]:
        """Appends tokens to the session; logits of the last one, float32 [n_vocab]."""
        return await self._own.prefill(tokens)

    async def forward_prefill(self, tokens: SequenceOf[int], pos: int) -> NDArray[np.float32]:
        """Puts tokens at position `pos`, forgetting what was there and after; logits of the last one."""
        return await self._own.forward_prefill(tokens, pos)

    async def forward_decode(self, token: int, pos: int) -> NDArray[np.float32]:
        """Puts one token at position `pos`, forgetting what was there and after; its logits."""
        return await self._own.forward_decode(token, pos)

    async def forward_one(self, token: int) -> NDArray[np.float32]:
        """Appends one token to the session; its logits."""
        return await self._own.forward_one(token)

    async def sample(
        self, sampler: SamplerLike = None, *, logits_processors: Any = None, **sampling: Unpack[SamplingOptions]
    ) -> int:
        """Draws a token to follow the session's; see `Session.sample`."""
        return await self._own.sample(sampler, logits_processors=logits_processors, **sampling)

    truncate = as_coroutine(Engine.truncate, "engine")
    reset = as_coroutine(Engine.reset, "engine")

    # ---- snapshots: files and models are read and written in another thread

    snapshot = as_coroutine(Engine.snapshot, "engine")
    snapshot_bytes = as_coroutine(Engine.snapshot_bytes, "engine")

    @classmethod
    @takes(RestoreOptions, restored, rest=EngineOptions)
    async def restore(
        cls, path: Path, model_path: ModelSource | LoadedEngine = None, **options: Unpack[RestoreOptions]
    ) -> Self:
        """`Engine.restore`."""
        return await cls._restored(path, model_path, options)

    @classmethod
    @takes(RestoreOptions, restored, rest=EngineOptions)
    async def restore_bytes(
        cls, data: bytes | bytearray | memoryview, model_path: ModelSource | LoadedEngine = None,
        **options: Unpack[RestoreOptions],
    ) -> Self:  # fmt: skip
        """`Engine.restore_bytes`."""
        return await cls._restored(data, model_path, options)

    @classmethod
    async def _restored(cls, place: Any, model_path: ModelSource | LoadedEngine, options: Any) -> Self:
        return cls(await in_thread(lambda: restored(Engine, place, model_path, **options)))

    @takes(ResumeOptions, resumed)
    async def resume(
        self, snapshot: Path | bytes | bytearray | memoryview, **options: Unpack[ResumeOptions]
    ) -> AsyncChunks:
        """`Engine.resume` of a request for text: its further chunks, for `async for`.

        Raises SnapshotFormatError for a session, a search or a conversation: `engine.resume` gives these.
        """
        check_keywords("resume", options, ResumeOptions.__annotations__)
        return await resume_async(self.engine.context, snapshot, dict(options))

    @staticmethod
    async def snapshot_info(snapshot: Path | bytes | bytearray | memoryview) -> SnapshotInfo:
        """Describes a snapshot, without its model. Raises SnapshotError and its children."""
        return await in_thread(Engine.snapshot_info, snapshot)

    # ---- adapters

    load_lora = as_coroutine(Engine.load_lora, "engine")
    unload_lora = as_coroutine(Engine.unload_lora, "engine")
    apply_lora = as_coroutine(Engine.apply_lora, "engine")
    push_lora = as_coroutine(Engine.push_lora, "engine")
    pop_lora = as_coroutine(Engine.pop_lora, "engine")
    clear_loras = as_coroutine(Engine.clear_loras, "engine")

    @property
    def loras(self) -> dict[str, Lora]:
        """Loaded adapters by name."""
        return self.engine.loras

    @property
    def pushed_loras(self) -> list[tuple[Lora, float]]:
        """Adapters of requests that give no `lora`, the last pushed last."""
        return self.engine.pushed_loras

    # ---- memory, metrics, life

    memory_bytes = as_coroutine(Engine.memory_bytes, "engine")
    offload_counts = as_coroutine(Engine.offload_counts, "engine")
    prefix_cache_bytes = as_coroutine(Engine.prefix_cache_bytes, "engine")
    shrink_to_fit = as_coroutine(Engine.shrink_to_fit, "engine")
    metrics_snapshot = as_coroutine(Engine.metrics_snapshot, "engine")
    as_draft = as_coroutine(Engine.as_draft, "engine")

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the scores that pooling "rank" gives; empty if the model has no classifier, or nameless ones."""
        return self.engine.labels

    @property
    def num_threads(self) -> int:
        """Threads that compute."""
        return self.engine.num_threads

    @property
    def sampling_defaults(self) -> SamplerConfig:
        """Settings of calls without a `sampler`."""
        return self.engine.sampling_defaults

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

    @takes(scoring.ScoreOptions, scoring.scores_of)
    async def score(
        self, prompt: Prompt, continuations: SequenceOf[Prompt], **options: Unpack[scoring.ScoreOptions]
    ) -> list[scoring.ContinuationScore]:
        """Log-probabilities of continuations of a prompt, as `Engine.score` gives them."""
        texts = plain("continuations", continuations)
        size = size_of([prompt, *texts]) if isinstance(texts, list) else 0
        job = await made(size, lambda: scoring.Continuations(self.engine.context, prompt, texts, options))
        return await self._scored(job)

    @takes(scoring.PerplexityOptions, scoring.perplexity_of)
    async def perplexity(self, text: Prompt, **options: Unpack[scoring.PerplexityOptions]) -> scoring.Perplexity:
        """Perplexity of a text of any length, as `Engine.perplexity` gives it."""
        job = await made(size_of([text]), lambda: scoring.Windows(self.engine.context, text, options))
        return await self._scored(job)

    async def _scored(self, job: scoring.ScoringJob[scoring.T]) -> scoring.T:
        bell = CoroutineBell(self._core.loop)
        for requests, outbox in job.parts(bell):
            await _finish(Call(self._core, requests, outbox, bell))
        return job.result()

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
