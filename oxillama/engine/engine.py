"""`Engine`: a loaded model with everything that can be asked of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_flag, check_int, check_keywords
from oxillama._util.places import Path
from oxillama._util.signatures import takes
from oxillama.config import EngineConfig, EngineOptions, ModelSource, SamplerConfig, SamplingOptions, field_names
from oxillama.core import denoising, embedding, ranking, scoring
from oxillama.core.batch import Batch, BatchSettings, Errors, batch_runner
from oxillama.core.beam_rounds import BeamKeywords, BeamRounds, BeamSearchOptions, start_search
from oxillama.core.beam_search import BeamOptions, BeamSearchConfig
from oxillama.core.chat import chat_call, chat_ids, chat_request, infill_request
from oxillama.core.context import ENGINES, EngineContext, LoadedEngine, reopened_engine, ticket_of
from oxillama.core.conversation import Conversation
from oxillama.core.embedding import Embeddings, EmbedOptions, EmbedPooling
from oxillama.core.loading import EngineParts, load_parts, located, make_config, make_context
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
from oxillama.core.prompts import Messages, check_token, infill_ids
from oxillama.core.ranking import RankedDocument, RerankOptions
from oxillama.core.request import SnapshotOptions, SnapshotProtocol
from oxillama.core.results import BatchFailure, BeamHypothesis, Completion
from oxillama.core.scoring import ContinuationScore, Perplexity, PerplexityOptions, ScoreOptions
from oxillama.core.session import SamplerLike, Session, SessionOptions, session_options
from oxillama.core.text_stream import Chunks, complete, start_stream
from oxillama.errors import ConfigError
from oxillama.lora import Lora, as_lora
from oxillama.metrics import MetricsSnapshot
from oxillama.models import ModelSpec
from oxillama.snapshot.engine_snapshots import EngineSnapshots
from oxillama.snapshot.info import SnapshotInfo, snapshot_info
from oxillama.snapshot.restore import RestoreOptions, restored
from oxillama.snapshot.resume import ResumeOptions, resumed
from oxillama.speculative.draft_model import DraftModel, OwnDraft
from oxillama.text_settings import DiffusionSettings
from oxillama.tokenizer import Tokenizer

__all__ = ["Engine"]

Data = bytes | bytearray | memoryview


class Engine:
    """A loaded model. Use as a context manager, or call `close`.

    Any number of threads may use one engine: their requests share the model's steps, and no result depends on what
    else runs. `on_token` may use the engine too; what runs inside its steps (processors, criteria, drafts) may not.

    Its pickle says how it was loaded (paths, settings, adapters), not what it has computed: another process opens the
    model from that, once, however many pickles it reads, and keeps the engine that it opened last until `close`. So it
    may be an argument of the functions that multiprocessing, joblib or Ray call. A copy is the engine itself.

    context_size: tokens of one request, prompt and output together. n_vocab: length of a row of logits.
    model_config: the model's hyper-parameters. tokenizer, metadata: of the file. config: the settings. context: the
    engine's parts, for its handles, drafts and snapshots.
    """

    def __init__(self, config: EngineConfig | None = None, *, parts: EngineParts | None = None, **fields: Any) -> None:
        """Loads what `config` names; `fields` replace its fields. `parts` are used instead of loading, if given.

        Raises TypeError for an unknown field, ConfigError for a value out of range, LoadError and its children if the
        model can't be loaded.
        """
        self.config = located(make_config("Engine", config, fields), parts)
        self.context: EngineContext = make_context(self.config, parts or load_parts(self.config), EngineSnapshots)
        self.tokenizer: Tokenizer = self.context.tokenizer
        self.model_config: ModelSpec = self.context.spec
        self.metadata = self.context.metadata
        self.context_size, self.n_vocab = self.context.context_size, self.context.spec.n_vocab
        self._core, self._factory = self.context.core, self.context.factory  # short names
        self._session, self._snapshots = self.context.session, self.context.snapshots
        self._own_draft = OwnDraft()

    @classmethod
    def load(cls, model_path: ModelSource = None, **fields: Unpack[EngineOptions]) -> Self:
        """Loads a model from a path, from bytes, or the one that ships with the package; see `EngineConfig`."""
        check_keywords("load", fields, field_names(EngineConfig))
        return cls(EngineConfig(), model_path=model_path, **fields)

    @property
    def sampling_defaults(self) -> SamplerConfig:
        """Settings of calls without a `sampler`: `general.sampling.*` of the file, else those of `SamplerConfig`."""
        return self._factory.default_chain.config

    # A text is also a sequence of texts to the type system; the first signature that fits counts.
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, *, n: None = None, **options: Unpack[GenerateOptions]
    ) -> Completion: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, *, n: int, **options: Unpack[GenerateOptions]
    ) -> list[Completion]: ...

    @overload
    def generate(
        self, prompt: SequenceOf[Prompt], *, n: None = None, **options: Unpack[GenerateOptions]
    ) -> list[Completion]: ...

    @overload
    def generate(
        self, prompt: SequenceOf[Prompt], *, n: int, **options: Unpack[GenerateOptions]
    ) -> list[list[Completion]]: ...

    @takes(GenerateOptions, TextOptions, rest=RequestOptions)
    def generate(self, prompt: Any, *, n: int | None = None, **options: Any) -> Any:
        """Continues a prompt (text or token ids), or a list of prompts together; a list gives a list.

        Raises ConfigError, TypeError, TokenizerError, ContextOverflowError (the prompt is too long), KvCacheFullError
        (it could never fit the cache), QueueFullError, EngineClosedError, GenerateError (the model is an encoder).
        """
        on_token = options.pop("on_token", None)
        parsed = read_options("generate", {"n": n, **options}, self._factory.default_chain)
        return complete(self.context, prompt, parsed, on_token)

    @takes(StreamOptions, TextOptions, rest=RequestOptions)
    def stream(self, prompt: Prompt, *, n: int | None = None, **options: Unpack[StreamOptions]) -> Chunks:
        """Continues one prompt, piece by piece, from the first piece that is asked for; errors are those of `generate`.

        Leaving early (`close`, or dropping the generator) ends the request. Together the chunks are what `generate`
        returns; with n, those of each `index`.
        """
        parsed = read_options("stream", {"n": n, **options}, self._factory.default_chain)
        return start_stream(self.context, prompt, parsed)

    @takes(denoising.DiffuseOptions, DiffusionSettings)
    def diffuse(self, prompt: Prompt, **options: Unpack[denoising.DiffuseOptions]) -> Completion:
        """Continues a prompt by denoising, with a model that does so (LLaDA, Dream, RND1); errors are `generate`'s."""
        return denoising.denoised(self.context, prompt, options)

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, n: None = None, **options: Unpack[ChatOptions]
    ) -> Completion: ...

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, n: int, **options: Unpack[ChatOptions]
    ) -> list[Completion]: ...

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[True], n: int | None = None, **options: Unpack[ChatOptions]
    ) -> Chunks: ...

    @overload
    def chat(
        self, messages: Messages, *, stream: bool, n: int | None = None, **options: Unpack[ChatOptions]
    ) -> Completion | list[Completion] | Chunks: ...

    @takes(ChatOptions, chat_call, rest=StreamOptions)
    def chat(self, messages: Messages, *, stream: bool = False, n: int | None = None, **options: Any) -> Any:
        """Answers messages, as OpenAI's clients send them, by the model's chat template (see `ChatTemplate.render`).

        stream: give chunks as they come.
        Raises MessageError for messages of another form, ChatTemplateError if there is no template or it fails,
        ToolFormatError if the form of calls isn't known, GrammarError for their schemas, and what `generate` raises.
        """
        return self._answer(*chat_request(self.context, messages, options), stream, n)

    @takes(PromptOptions, chat_call)
    def chat_tokens(self, messages: Messages, **options: Unpack[PromptOptions]) -> list[int]:
        """Token ids of the prompt that `chat` makes of messages."""
        return chat_ids(self.tokenizer, messages, options)

    @overload
    def infill(
        self, prefix: str, suffix: str, *, stream: Literal[False] = ..., n: None = ..., **options: Unpack[InfillOptions]
    ) -> Completion: ...

    @overload
    def infill(
        self, prefix: str, suffix: str, *, stream: Literal[False] = False, n: int, **options: Unpack[InfillOptions]
    ) -> list[Completion]: ...

    @overload
    def infill(
        self, prefix: str, suffix: str, *, stream: Literal[True], n: int | None = None, **options: Unpack[InfillOptions]
    ) -> Chunks: ...

    @overload
    def infill(
        self, prefix: str, suffix: str, *, stream: bool, n: int | None = None, **options: Unpack[InfillOptions]
    ) -> Completion | list[Completion] | Chunks: ...

    @takes(InfillOptions, infill_ids, rest=StreamOptions)
    def infill(self, prefix: str, suffix: str, *, stream: bool = False, n: int | None = None, **options: Any) -> Any:
        """The text between two others, by a model that was trained for fill-in-the-middle: code, mostly.

        stream: give chunks as they come. Other options are those of `generate` but `echo`. Raises UnsupportedModelError
        if the file lacks a token that marks prefix, suffix or middle.
        """
        return self._answer(*infill_request(self.context, prefix, suffix, options), stream, n)

    def infill_tokens(self, prefix: str, suffix: str, *, suffix_first: bool = False) -> list[int]:
        """The prompt that `infill` makes of the texts around a gap, as token ids, for `batch` and others."""
        return infill_ids(self.tokenizer, prefix, suffix, suffix_first)

    def _answer(self, ids: list[int], options: dict[str, Any], stream: bool, n: int | None) -> Any:
        """Generates what follows a prompt that `chat` or `infill` made: a completion, n of them, or chunks."""
        if not check_flag("stream", stream):
            return self.generate(ids, n=n, **options)
        if options.get("on_token") is not None:
            raise ConfigError("on_token is for stream=False; with stream=True iterate over the chunks")
        return self.stream(ids, n=n, **{name: value for name, value in options.items() if name != "on_token"})

    def conversation(self) -> Conversation:
        """A dialogue that keeps its KV between turns."""
        return Conversation(self._core, self._factory, self._snapshots)

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text; `parse_special` reads text like "<|im_end|>" as the special token of that name."""
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of token ids. Raises TokenizerError for ids out of range."""
        return self.tokenizer.decode(ids)

    def is_eos(self, token: int) -> bool:
        """Whether a token ends generation. Raises TokenizerError for an id out of range."""
        return check_token("token", token, self.n_vocab) in self.tokenizer.eog_ids

    @overload
    def batch(
        self, prompts: Iterable[Prompt], *, errors: Literal["raise"] = ..., n: None = ...,
        **options: Unpack[BatchOptions],
    ) -> Batch[Completion]: ...  # fmt: skip

    @overload
    def batch(
        self, prompts: Iterable[Prompt], *, errors: Literal["raise"] = "raise", n: int, **options: Unpack[BatchOptions]
    ) -> Batch[list[Completion]]: ...

    @overload
    def batch(
        self, prompts: Iterable[Prompt], *, errors: Errors, n: None = None, **options: Unpack[BatchOptions]
    ) -> Batch[Completion | BatchFailure]: ...

    @overload
    def batch(
        self, prompts: Iterable[Prompt], *, errors: Errors, n: int, **options: Unpack[BatchOptions]
    ) -> Batch[list[Completion] | BatchFailure]: ...

    @takes(BatchOptions, BatchSettings, rest=StreamOptions)
    def batch(
        self, prompts: Iterable[Prompt], *, errors: Errors = "raise", n: int | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch[Any]:  # fmt: skip
        """Continues any number of prompts, computed together; an iterator over the completions.

        Prompts are taken as they are needed, by the thread that asks for results: a generator of millions is fine.
        Those that were taken are computed while it asks for the next result, and also while it does something else, if
        that takes a few milliseconds. n: completions of each prompt, whose result is a list of them. Raises ConfigError
        and TypeError for the options, and errors of the iterable after the results of the prompts before them.
        """
        runner = batch_runner(self._core, self._factory, prompts, {"errors": errors, "n": n, **options})
        if not isinstance(prompts, Iterable):
            raise ConfigError("an asynchronous iterable of prompts is for AsyncEngine.batch()")
        return Batch(self._core, runner, iter(prompts))

    @takes(BeamSearchOptions, BeamOptions, rest=BeamKeywords)
    def beam_search(
        self, prompt: Prompt, config: BeamSearchConfig | None = None, **options: Unpack[BeamSearchOptions]
    ) -> list[BeamHypothesis]:
        """The likeliest continuations of a prompt that are found with several beams, by falling score.

        At most beam_width. One beam with early_stopping gives what greedy generation gives. Of equal candidates the one
        of the better beam goes first, then the lower token. It counts as beam_width requests among the others.

        Raises what `generate` raises (KvCacheFullError if all beams could never fit the cache), ConfigError for a
        beam_width above the number of tokens, and GrammarError if no token can follow.
        """
        return self.beam_rounds(prompt, config, **options).results()

    @takes(BeamSearchOptions, BeamOptions, rest=BeamKeywords)
    def beam_rounds(
        self, prompt: Prompt, config: BeamSearchConfig | None = None, **options: Unpack[BeamSearchOptions]
    ) -> BeamRounds:
        """`beam_search` round by round, which can be saved meanwhile: an iterator over the beams that are followed."""
        search = start_search(self._core, self._factory, prompt, config, options)
        return BeamRounds(self._core, search, options.get("cancel_token"), self._snapshots)

    # ---- numbers of whole texts

    @overload
    def embed(self, input: Prompt, *, pooling: str | None = None, **options: Unpack[EmbedOptions]) -> NDArray[Any]: ...

    @overload
    def embed(
        self, input: SequenceOf[Prompt], *, pooling: EmbedPooling, **options: Unpack[EmbedOptions]
    ) -> NDArray[Any]: ...

    @overload
    def embed(
        self, input: SequenceOf[Prompt], *, pooling: str | None = None, **options: Unpack[EmbedOptions]
    ) -> Embeddings: ...

    @takes(EmbedOptions, embedding.choose_pooling)
    def embed(self, input: Any, *, pooling: str | None = None, **options: Unpack[EmbedOptions]) -> Embeddings:
        """Hidden states after the final norm, pooled over tokens: float32 [d] for one text, [n, d] for a list.

        Texts of like length are computed together, whatever their order. lora: adapters, as for `generate`.
        Raises ConfigError, TokenizerError, ContextOverflowError; UnsupportedModelError for "rank" without a classifier;
        GenerateError if the model computes NaN or infinity.
        """
        requests, outbox, results = embedding.embedding_requests(self.context, input, pooling, options)
        self._core.run(requests, outbox)
        return results()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the scores that pooling "rank" gives; empty if the model has no classifier, or nameless ones."""
        return () if self.context.classifier is None else self.context.classifier.labels

    @takes(RerankOptions, ranking.ranking_requests)
    def rerank(self, query: str, documents: SequenceOf[str], **options: Unpack[RerankOptions]) -> list[RankedDocument]:
        """The documents, best first; of equal ones, the first that was given.

        Query and document are read together, as the model's file says (its chat template named "rerank"), or else as
        two texts with the encoder's separators. Scores are the encoder's logits, or a decoder's probabilities.

        Raises ConfigError, TokenizerError, ContextOverflowError; UnsupportedModelError if the model can't rank pairs.
        """
        requests, outbox, results = ranking.ranking_requests(self.context, query, documents, options)
        self._core.run(requests, outbox)
        return results()

    def forward_logits(
        self, ids: SequenceOf[int], *, decoder_tokens: SequenceOf[int] | None = None, lora: Any = None
    ) -> NDArray[np.float32]:
        """Logits of every position, float32 [len(ids), n_vocab]; of `decoder_tokens`, where an encoder reads `ids`.

        Nothing is kept. Raises TokenizerError, ConfigError, ContextOverflowError; GenerateError for an encoder alone.
        """
        return embedding.logits_of(self.context, ids, decoder_tokens, lora)

    @takes(ScoreOptions, scoring.scores_of)
    def score(
        self, prompt: Prompt, continuations: SequenceOf[Prompt], **options: Unpack[ScoreOptions]
    ) -> list[ContinuationScore]:
        """Log-probabilities of continuations of a prompt, which is computed once; raises what `forward_logits` does."""
        return scoring.scores_of(self.context, prompt, continuations, options)

    @takes(PerplexityOptions, scoring.perplexity_of)
    def perplexity(self, text: Prompt, **options: Unpack[PerplexityOptions]) -> Perplexity:
        """Perplexity of a text of any length, which is computed in windows; raises what `forward_logits` does."""
        return scoring.perplexity_of(self.context, text, options)

    # ---- the engine's own session: each method raises what that of `Session` raises

    @takes(SessionOptions, session_options)
    def session(self, **options: Unpack[SessionOptions]) -> Session:
        """A session of one's own, beside the engine's and as many others as are wanted.

        Raises ConfigError; EngineClosedError, GenerateError if the model has an encoder.
        """
        check_keywords("session", options, SessionOptions.__annotations__)
        self._core.check_continues()
        return Session(self._core, self._factory, session_options(**options), self._snapshots)

    def fork(self) -> Session:
        """A session of one's own that begins with the tokens of the engine's; see `Session.fork`."""
        return self._session.fork()

    @property
    def position(self) -> int:
        """Tokens in the session so far."""
        return self._session.position

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """Logits of the session's last position, float32 [n_vocab]; None unless they have just been computed."""
        return self._session.logits

    def reset(self) -> None:
        """Empties the session and frees its blocks."""
        self._session.reset()

    def prefill(self, tokens: SequenceOf[int]) -> NDArray[np.float32]:
        """Appends tokens to the session; logits of the last one, float32 [n_vocab]."""
        return self._session.prefill(tokens)

    def forward_prefill(self, tokens: SequenceOf[int], pos: int) -> NDArray[np.float32]:
        """Puts tokens at position `pos`, forgetting what was there and after; logits of the last one."""
        return self._session.forward_prefill(tokens, pos)

    def forward_decode(self, token: int, pos: int) -> NDArray[np.float32]:
        """Puts one token at position `pos`, forgetting what was there and after; its logits."""
        return self._session.forward_decode(token, pos)

    def forward_one(self, token: int) -> NDArray[np.float32]:
        """Appends one token to the session; its logits."""
        return self._session.forward_one(token)

    def sample(
        self, sampler: SamplerLike = None, *, logits_processors: Any = None, **sampling: Unpack[SamplingOptions]
    ) -> int:
        """Draws a token to follow the session's; see `Session.sample`."""
        return self._session.sample(sampler, logits_processors=logits_processors, **sampling)

    def truncate(self, n: int) -> None:
        """Forgets all but the session's first n tokens. Raises ConfigError outside 0 … position."""
        self._session.truncate(n)

    # ---- snapshots: a session, or a request for text, kept in a file and gone on with elsewhere, bit for bit

    @takes(SnapshotOptions, SnapshotProtocol.write)
    def snapshot(self, path: Path, **options: Unpack[SnapshotOptions]) -> None:
        """Saves the engine's session to a file: its tokens, all that is computed of them, and the engine's settings.

        The model isn't saved, only what it is known by. The file takes its name when all of it is on disk; until then,
        and if anything fails, what had the name before stays. Raises SnapshotError and its children, ConfigError,
        EngineClosedError; GenerateError while another thread uses the session, or for an encoder; ModelFileError if
        the model's file was changed since it was loaded.
        """
        self._session.snapshot(path, **options)

    def snapshot_bytes(self, *, compress: bool = False, format: int = 2) -> bytes:
        """Bytes that `snapshot` would write."""
        return self._session.snapshot_bytes(compress=compress, format=format)

    @classmethod
    @takes(RestoreOptions, restored, rest=EngineOptions)
    def restore(
        cls, path: Path, model_path: ModelSource | LoadedEngine = None, **options: Unpack[RestoreOptions]
    ) -> Self:
        """Loads the model that a snapshot is of, with its settings and adapters, and the session that was saved.

        Of a request for text, or a search's best beam, the session gets what was computed; `resume` goes on with it.

        Raises SnapshotError and its children, LoadError and its children, ConfigError.
        """
        return restored(cls, path, model_path, **options)

    @classmethod
    @takes(RestoreOptions, restored, rest=EngineOptions)
    def restore_bytes(
        cls, data: Data, model_path: ModelSource | LoadedEngine = None, **options: Unpack[RestoreOptions]
    ) -> Self:
        """`restore` of the bytes of a snapshot."""
        return restored(cls, data, model_path, **options)

    @takes(ResumeOptions, resumed)
    def resume(
        self, snapshot: Path | Data, **options: Unpack[ResumeOptions]
    ) -> Chunks | Session | Conversation | BeamRounds:
        """Goes on with what was saved, in this engine, beside all else that it does.

        A request for text gives its further chunks, beginning with those that were not read, several completions
        those of all; a beam search gives `BeamRounds`, a session a `Session`, a conversation a `Conversation`. What is
        taken from a snapshot, a path or bytes, is never lent to other requests: it may be anybody's. Raises
        SnapshotError and its children, ConfigError, KvCacheFullError, QueueFullError, EngineClosedError, and
        ModelFileError if the model's file was changed since it was loaded.
        """
        check_keywords("resume", options, ResumeOptions.__annotations__)
        return resumed(self.context, snapshot, **options)

    @staticmethod
    def snapshot_info(snapshot: Path | Data) -> SnapshotInfo:
        """Describes a snapshot, without its model. Raises SnapshotError and its children."""
        return snapshot_info(snapshot)

    # ---- adapters: one that is unloaded or popped stays with the requests that were made with it, until they end

    def load_lora(self, name: str, path: Path | Lora) -> Lora:
        """Loads an adapter (a GGUF file, a PEFT folder, or what `Lora.load` gave) under a name.

        Raises ConfigError if the name is taken, what `Lora.load` raises, and LoraError if it doesn't fit the model.
        """
        self._core.check_open()
        self.context.loras.load(name, lora := as_lora(path))
        return lora

    def unload_lora(self, name: str) -> None:
        """Forgets a name. Raises ConfigError, which lists the loaded ones, if there is no such."""
        self.context.loras.unload(name)

    @property
    def loras(self) -> dict[str, Lora]:
        """Loaded adapters by name."""
        return self.context.loras.named

    def apply_lora(self, path: Path | Lora, scale: float = 1.0) -> Lora:
        """Loads an adapter and pushes it, without a name; raises what `load_lora` and `push_lora` raise."""
        lora = as_lora(path)
        self.push_lora(lora, scale)
        return lora

    def push_lora(self, lora: Path | Lora, scale: float = 1.0) -> None:
        """Adds an adapter to those of all requests to come that give no `lora`: the one of a name, or else of a path.

        Raises ConfigError for a name that is neither, or a scale that is not finite; what `load_lora` raises.
        """
        self._core.check_open()
        of_path = isinstance(lora, str) and lora not in self.loras and os.path.exists(lora)
        self.context.loras.push(as_lora(lora) if of_path or isinstance(lora, os.PathLike) else lora, scale)

    def pop_lora(self) -> Lora:
        """Takes away the one that was pushed last. Raises ConfigError if there is none."""
        return self.context.loras.pop()

    def clear_loras(self) -> None:
        """Takes away all that were pushed."""
        self.context.loras.clear()

    @property
    def pushed_loras(self) -> list[tuple[Lora, float]]:
        """Adapters of requests that give no `lora`, the last pushed last."""
        return self.context.loras.pushed

    @property
    def closed(self) -> bool:
        return self._core.closed

    @property
    def num_threads(self) -> int:
        """Threads that compute."""
        return self._core.runner.num_threads

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by part: repacked weights, KV cache and states (reserved; committed as used), workspace, adapters."""
        return self._core.runner.memory_bytes() | {"loras": self.context.loras.nbytes}

    def offload_counts(self) -> Mapping[str, float]:
        """Counts of bringing weights where they are needed, since the engine was loaded; empty without `offload`.

        budget: bytes that weights may take now. hits, faults: pages that were in memory when needed, or not. bytes:
        read; direct_bytes: of these, past the system's page cache. stalls, stall_seconds: waits of products.
        """
        return self._core.runner.paging_counts()

    def prefix_cache_bytes(self) -> int:
        """Bytes of KV cache and recurrent states that the prefix cache has; others may use the same ones."""
        return self._core.prefix_cache_bytes()

    def shrink_to_fit(self, keep_bytes: int = 0) -> int:
        """Forgets what only the prefix cache has, the least recently used first and until `prefix_cache_bytes` is at
        most keep_bytes (0: ids and grammars of texts, too), and gives memory of free blocks back to the system.

        Returns the bytes that left memory: 0 on systems other than Linux. No result changes. Raises EngineClosedError.
        """
        most = check_int("keep_bytes", keep_bytes, 0, 1 << 62)
        return self._core.change(lambda: self.context.shrink(most))

    def metrics_snapshot(self) -> MetricsSnapshot:
        """Numbers of the engine's work, of one moment between two steps; also after `close`."""
        self._core.loop.post(self._core.publish)  # now, or if a step is under way, with its end
        return self._core.meter.snapshot()

    def as_draft(self) -> DraftModel:
        """A draft model of the same weights with a cache of its own: the same one each time, closed with the engine."""
        return self._own_draft.get(self)

    def close(self) -> None:
        """Ends what is under way with EngineClosedError and frees the model; further calls do nothing."""
        self._core.close()
        ENGINES.forget(self)
        self._own_draft.close()
        self.context.loras.forget()

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened_engine, (ticket_of(self),)

    def __deepcopy__(self, memo: object = None) -> Self:
        return self

    __copy__ = __deepcopy__

    def __repr__(self) -> str:
        spec = self.model_config
        state = "closed" if self.closed else f"context_size {self.context_size}"
        return f"<Engine {spec.arch} {spec.name!r}, {spec.n_layers} layers, n_vocab {self.n_vocab}, {state}>"
