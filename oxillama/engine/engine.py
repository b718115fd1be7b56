"""`Engine`: a loaded model with everything that can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from contextlib import closing
from typing import Any, Literal, Self, Unpack, cast, overload

from oxillama._util.checks import check_bool, check_keywords
from oxillama.config import EngineConfig, EngineOptions, ModelSource, SamplerConfig, field_names
from oxillama.core.batch import BatchMethods
from oxillama.core.context import EngineContext
from oxillama.core.conversation import Conversation
from oxillama.core.embedding import RankMethods
from oxillama.core.engine_core import EngineCore
from oxillama.core.loading import EngineParts, load_parts, make_config
from oxillama.core.options import (
    GenerateOptions,
    Prompt,
    RequestOptions,
    ServingOptions,
    Stop,
    TextOptions,
    check_options,
    parse_options,
)
from oxillama.core.prompts import Messages, Tools, chat_ids, check_callback, infill_ids, read_prompt, read_prompts
from oxillama.core.reopening import reopened_engine, ticket_of
from oxillama.core.request import ResultQueue
from oxillama.core.request_factory import RequestFactory
from oxillama.core.results import CancelToken, Completion
from oxillama.core.session import Session, SessionMethods
from oxillama.core.stopping import Criteria
from oxillama.core.text_stream import Chunks, answer, chunks, completions_of, shaped
from oxillama.core.tool_use import tool_use_of
from oxillama.engine.adapters import LoraMethods
from oxillama.engine.beam_calls import BeamMethods
from oxillama.engine.life import LifeMethods
from oxillama.engine.snapshots import SnapshotMethods, make_snapshots
from oxillama.errors import ConfigError
from oxillama.lora import LoraRegistry
from oxillama.models import ModelSpec
from oxillama.sampling import LogitsProcessor, SamplerChain
from oxillama.scheduling.pools import SequencePool
from oxillama.tokenizer import Tokenizer

__all__ = ["Engine"]


class Engine(SessionMethods, SnapshotMethods, RankMethods, BatchMethods, BeamMethods, LoraMethods, LifeMethods):
    """A loaded model. Use as a context manager, or call `close`.

    Any number of threads may use one engine: their requests share the model's steps, and no result depends on what
    else runs. Callbacks may use the engine too.

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
        self.config = make_config("Engine", config, fields)
        parts = parts or load_parts(self.config)
        self.tokenizer: Tokenizer = parts.tokenizer
        self.model_config: ModelSpec = parts.spec
        self.metadata = parts.metadata
        self.context_size: int = parts.context_size
        self.n_vocab: int = parts.spec.n_vocab
        pool = SequencePool(parts.n_blocks, parts.n_slots, parts.n_windowed, parts.window)
        encoder = "" if parts.spec.causal else parts.spec.arch
        self._core = EngineCore(
            parts.runner, pool, self.config.kv_block_size, parts.step_tokens or self.config.prefill_chunk_size,
            encoder=encoder, prefix_cache=self.config.prefix_cache, max_waiting=self.config.max_queue_size,
        )  # fmt: skip
        core, kv_type = self._core, self.config.kv_type
        self._loras = LoraRegistry(parts.spec, lambda: core.runner.adaptable)
        capacity = core.scheduler.capacity
        self._maker = RequestFactory(
            self.tokenizer, self.n_vocab, self.context_size, capacity, self._loras, kv_type, parts.sampling
        )
        self._snapshots = make_snapshots(core, self.config, parts, self._loras)
        self._session = Session(core, self._maker, ServingOptions(), self._snapshots)
        self._pooling, self._classifier = parts.pooling, parts.classifier
        self._end_ids = self.tokenizer.eog_ids
        self.context = EngineContext(
            self.config, core, self._maker, self._loras, self._snapshots, self._session, self.tokenizer, parts.spec,
            self.metadata, self.context_size, parts.pooling, parts.classifier,
        )  # fmt: skip

    @classmethod
    def load(cls, model_path: ModelSource = None, **fields: Unpack[EngineOptions]) -> Self:
        """Loads a model from a path, from bytes, or the one that ships with the package; see `EngineConfig`."""
        check_keywords("load", fields, field_names(EngineConfig))
        return cls(EngineConfig(), model_path=model_path, **fields)

    @property
    def sampling_defaults(self) -> SamplerConfig:
        """What counts for the sampling options that a call doesn't give, unless it gives a `sampler`: what the model's
        file says under `general.sampling.*`, and else the defaults of `SamplerConfig`, which tells of temperature 0."""
        return self._maker.sampling_defaults

    # ---- text

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

    def generate(
        self,
        prompt: Prompt | SequenceOf[Prompt],
        *,
        max_tokens: int | None = None,
        stop: Stop = None,
        ignore_eos: bool = False,
        sampler: SamplerConfig | SamplerChain | None = None,
        logits_processors: SequenceOf[LogitsProcessor] | None = None,
        stopping_criteria: Criteria = None,
        echo: bool = False,
        on_token: Callable[..., object] | None = None,
        cancel_token: CancelToken | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        n: int | None = None,
        **sampling: Any,
    ) -> Completion | list[Completion] | list[list[Completion]]:
        """Continues a prompt (text or token ids), or a list of prompts together; a list gives a list.

        max_tokens: tokens to generate at most; None: up to the context's end.
        stop: strings that end the text; they are cut off, with what follows.
        ignore_eos: go on after end-of-generation tokens.
        sampler, sampling: fields of `SamplerConfig`, singly or together, or a `SamplerChain`; a list's prompts all use
            the same seed. Without a sampler, `sampling_defaults` stand for the fields that are not given. Also `lora`,
            `priority`, `deadline`, `deadline_from`, `cache_prompt` and `cache_salt`: see `ServingOptions`; and `draft`,
            `num_speculative`, `acceptance` and `adaptive`, which make it quicker: see `DraftOptions`.
        logits_processors: functions (token ids so far, logits) that change a copy of the logits, float32 [n_vocab], in
            place before everything else; they run inside the engine's step. What one raises ends its request alone.
        stopping_criteria: a function (token ids so far, logits) -> bool, or a list of them, called after each token.
            The ids are those of prompt and text. True from one ends the text, whose last token this is, with
            finish_reason "stop". The logits, float32 [n_vocab], are the model's that the token was drawn from, and
            can't be written. They run inside the engine's step; what one raises ends its request alone.
        echo: the prompt stands before the text of each completion: as given, or of token ids their text without control
            tokens. token_ids, logprobs and stop strings are of what follows it; on_token and streams get it first.
        on_token: called with each piece of text as it comes, (piece) for one prompt and (index, piece) for a list; with
            n always (index, piece), where index is n times the prompt's, plus the completion's. What it raises ends
            this call and nothing else.
        cancel_token: lets another thread, or on_token, stop it; what there is by then is returned.
        logprobs: give each token's log-probability by the model's own distribution (before penalties, temperature, cuts
            and grammar), with this many of the likeliest tokens in its place: 0 to 1024, all if there are fewer.
        prompt_logprobs: the same for the tokens of the prompt, which then is computed whole: what others left in the
            prefix cache is not used.
        n: so many completions of each prompt, which is computed once: a list of them in the place of each, also for 1.
            Completion i is that of the same call without n and with seed + i (modulo 2^64, as vLLM seeds them).

        Raises ConfigError, TokenizerError, ContextOverflowError (the prompt is too long), KvCacheFullError (it could
        never fit the cache), QueueFullError, EngineClosedError, GenerateError (the model is an encoder); TypeError for
        unknown options.
        """
        options = parse_options(
            "generate", max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos, sampler=sampler,
            logits_processors=logits_processors, stopping_criteria=stopping_criteria, echo=echo,
            cancel_token=cancel_token, logprobs=logprobs, prompt_logprobs=prompt_logprobs, n=n, sampling=sampling,
            defaults=self.sampling_defaults,
        )  # fmt: skip
        self._core.check_generates()
        single, prompts = read_prompts("prompt", prompt)
        found = self._complete(prompts, options, on_token, indexed=not single or n is not None)
        return cast(Completion, shaped(found, options.n, single))

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        stop: Stop = None,
        ignore_eos: bool = False,
        sampler: SamplerConfig | SamplerChain | None = None,
        logits_processors: SequenceOf[LogitsProcessor] | None = None,
        stopping_criteria: Criteria = None,
        echo: bool = False,
        cancel_token: CancelToken | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        n: int | None = None,
        **sampling: Unpack[RequestOptions],
    ) -> Chunks:
        """Continues one prompt, piece by piece; options and errors are those of `generate`.

        Starts with the first piece that is asked for. Leaving early (`close`, or dropping the generator) ends the
        request. Together the chunks are what `generate` returns; with n, those of each `index`.
        """
        options = parse_options(
            "stream", max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos, sampler=sampler,
            logits_processors=logits_processors, stopping_criteria=stopping_criteria, echo=echo,
            cancel_token=cancel_token, logprobs=logprobs, prompt_logprobs=prompt_logprobs, n=n, sampling=sampling,
            defaults=self.sampling_defaults,
        )  # fmt: skip
        self._core.check_generates()
        prompt = read_prompt("prompt", prompt, "stream() takes")
        ids = self._maker.ids("prompt", prompt)
        self._maker.limit("prompt", len(ids), options.max_tokens)
        self._maker.prepare(options)
        echoed = self._maker.echo(prompt, ids, options)
        return answer(self._core, self._maker, ids, options, self._snapshots, echo=echoed)

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, n: None = None, **options: Any
    ) -> Completion: ...

    @overload
    def chat(
        self, messages: Messages, *, stream: Literal[False] = False, n: int, **options: Any
    ) -> list[Completion]: ...

    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], **options: Any) -> Chunks: ...

    @overload
    def chat(self, messages: Messages, *, stream: bool, **options: Any) -> Completion | list[Completion] | Chunks: ...

    def chat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        tools: Tools = None,
        chat_template: str | None = None,
        on_token: Callable[[str], object] | None = None,
        **options: Any,
    ) -> Completion | list[Completion] | Chunks:
        """Answers messages, each {"role": …, "content": …}, by the model's chat template.

        messages: as OpenAI's clients send them; content is text, or a list of text parts, {"type": "text", "text": …},
            which are joined with newlines unless the template prints parts (see `ChatTemplate.render`).
        chat_template: a Jinja template to use instead of the model's. stream: give chunks as they come. Other options
        are those of `generate`, and with tools:

        tools: functions that the model may call, each {"type": "function", "function": {"name": …, "parameters":
            schema}}; its calls are in `tool_calls` of the result.
        tool_choice: "auto"; "required": it calls, and says nothing else; a tool's name: it calls that one, once; or
            "none": it doesn't see the tools, and all of its answer is text.
        tool_format: how it writes calls, if its template doesn't tell: "hermes", "qwen", "mistral", "mistral-args",
            "llama3", a `ToolFormat`, or "text": calls stay text.
        constrain_tools: False for calls that aren't held to the names and schemas of tools. With "auto" they aren't
            either where a grammar, schema, pattern or choices say what the whole text is.

        Raises MessageError for messages of another form, ChatTemplateError if there is no template or it fails,
        ToolFormatError if it isn't known how the model writes calls, GrammarError for a schema
        that calls can't be held to, and what `generate` raises.
        """
        check_options("chat", options)
        self._core.check_generates()
        ids = self._chat_ids(messages, tools, chat_template, options)
        if not check_bool("stream", stream):
            return cast(Completion, self.generate(ids, on_token=on_token, **options))
        if on_token is not None:
            raise ConfigError("on_token is for stream=False; with stream=True iterate over the chunks")
        return self.stream(ids, **options)

    def chat_tokens(self, messages: Messages, *, tools: Tools = None, chat_template: str | None = None) -> list[int]:
        """The prompt that `chat` makes of messages, as token ids."""
        return chat_ids(self.tokenizer, messages, tools, chat_template)

    @overload
    def infill(
        self, prefix: str, suffix: str, *, suffix_first: bool = False, stream: Literal[False] = False, n: None = None,
        **options: Any,
    ) -> Completion: ...  # fmt: skip

    @overload
    def infill(
        self, prefix: str, suffix: str, *, suffix_first: bool = False, stream: Literal[False] = False, n: int,
        **options: Any,
    ) -> list[Completion]: ...  # fmt: skip

    @overload
    def infill(
        self, prefix: str, suffix: str, *, suffix_first: bool = False, stream: Literal[True], **options: Any
    ) -> Chunks: ...

    @overload
    def infill(
        self, prefix: str, suffix: str, *, suffix_first: bool = False, stream: bool, **options: Any
    ) -> Completion | list[Completion] | Chunks: ...

    def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        suffix_first: bool = False,
        stream: bool = False,
        on_token: Callable[..., object] | None = None,
        **options: Any,
    ) -> Completion | list[Completion] | Chunks:
        """The text between two others, by a model that was trained for fill-in-the-middle: code, mostly.

        prefix, suffix: the texts around the gap, which may be empty; what they hold is never read as control tokens.
        suffix_first: the suffix comes first in the prompt, for models that were trained so (llama.cpp: spm_infill).
        stream: give chunks as they come. Other options are those of `generate` but `echo`.

        Raises UnsupportedModelError if the model's file lacks one of the tokens that mark prefix, suffix and middle,
        and what `generate` raises.
        """
        self._check_infill(options)
        ids = infill_ids(self.tokenizer, prefix, suffix, suffix_first, self.context_size)
        if not check_bool("stream", stream):
            return cast(Completion, self.generate(ids, on_token=on_token, **options))
        if on_token is not None:
            raise ConfigError("on_token is for stream=False; with stream=True iterate over the chunks")
        return self.stream(ids, **options)

    def infill_tokens(self, prefix: str, suffix: str, *, suffix_first: bool = False) -> list[int]:
        """The prompt that `infill` makes of the texts around a gap, as token ids, for `batch` and others."""
        return infill_ids(self.tokenizer, prefix, suffix, suffix_first)

    def conversation(self) -> Conversation:
        """A dialogue that keeps its KV between turns."""
        return Conversation(self._core, self._maker, self._snapshots)

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text; `parse_special` reads text like "<|im_end|>" as the special token of that name."""
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of token ids. Raises TokenizerError for ids out of range."""
        return self.tokenizer.decode(ids)

    # ---- to other processes

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened_engine, (ticket_of(self),)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        spec = self.model_config
        state = "closed" if self.closed else f"context_size {self.context_size}"
        return f"<Engine {spec.arch} {spec.name!r}, {spec.n_layers} layers, n_vocab {self.n_vocab}, {state}>"

    # ---- how it is done

    def _check_infill(self, options: dict[str, Any]) -> None:
        """Raises TypeError and ConfigError for options that `infill` doesn't have."""
        check_options("infill", options)
        if options.get("echo"):
            raise ConfigError("echo is not for infill(), whose text stands between two others")
        self._core.check_generates()

    def _chat_ids(
        self, messages: Messages, tools: Tools, chat_template: str | None, options: dict[str, Any]
    ) -> list[int]:
        """The prompt. In `options`, `tool_use` takes the place of the options that `chat` alone has."""
        if options.get("echo"):
            raise ConfigError("echo is not for chat(), whose prompt a template makes: chat_tokens() gives its tokens")
        choice, form, held = (options.pop(f, None) for f in ("tool_choice", "tool_format", "constrain_tools"))
        shown = None if choice == "none" else tools
        ids = chat_ids(self.tokenizer, messages, shown, chat_template, self.context_size)
        source = self.tokenizer.chat_template if chat_template is None else chat_template
        use = tool_use_of(source, messages, tools, choice, form, held)
        if use is not None and options.setdefault("tool_use", use) is not use:
            raise ConfigError("tool_use and tools are both given: chat() makes the one of the other")
        return ids

    def _complete(
        self,
        prompts: list[tuple[str, Any]],
        options: TextOptions,
        on_token: Callable[..., object] | None,
        indexed: bool = False,
    ) -> list[Completion]:
        check_callback(on_token)
        outbox = ResultQueue(len(prompts) * options.n_each)
        requests = self._maker.requests(prompts, options, outbox)
        found = []
        with closing(chunks(self._core, requests, outbox, options.cancel_token, whole=on_token is None)) as running:
            for index, chunk in running:
                found.append((index, chunk))
                if on_token is not None and chunk.text:
                    on_token(index, chunk.text) if indexed else on_token(chunk.text)
        return completions_of(requests, found, options.n_each)
