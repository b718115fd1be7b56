"""From prompts and options to requests that generate text."""

from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from oxillama.checks import check_bool, check_int
from oxillama.config import MAX_CONTEXT, SamplerConfig
from oxillama.engine.core import EngineCore
from oxillama.engine.grammars import Grammars
from oxillama.engine.logprobs import Scores, TokenScorer, check_logprobs
from oxillama.engine.prompts import check_stop, check_tokens, make_sampler_config
from oxillama.engine.request import Outbox
from oxillama.engine.results import CancelToken, Chunk, Completion
from oxillama.engine.sequence import Sequence
from oxillama.engine.serving import RequestOptions, ServingOptions, split_options
from oxillama.engine.stream import StopMatcher, TextRequest, chunks
from oxillama.engine.tool_use import ToolUse, check_tool_use
from oxillama.errors import ConfigError, ContextOverflowError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import Sampler, SamplerChain
from oxillama.tokenizer import Tokenizer, TokenStream

__all__ = [
    "Chunks",
    "GenerateOptions",
    "Prompt",
    "Stop",
    "StreamOptions",
    "TextMaker",
    "TextOptions",
    "answer",
    "completion_of",
    "parse_options",
    "read_options",
]

Prompt = str | SequenceOf[int]
Stop = str | SequenceOf[str] | None
Chunks = Generator[Chunk, None, None]
Named = SequenceOf[tuple[str, Any]]  # prompts with what messages call them


class StreamOptions(RequestOptions, total=False):
    """The keywords of `Engine.stream` and `Engine.batch`."""

    max_tokens: int | None
    stop: Stop
    ignore_eos: bool
    sampler: SamplerConfig | None
    cancel_token: CancelToken | None
    logprobs: int | None
    prompt_logprobs: int | None


class GenerateOptions(StreamOptions, total=False):
    """The keywords of `Engine.generate`."""

    on_token: Callable[..., object] | None


_STREAM_FIELDS = set(StreamOptions.__annotations__) - set(RequestOptions.__annotations__)


@dataclass(frozen=True)
class TextOptions:
    """What a caller asks for, checked. max_tokens None: up to the context's end; logprobs None: none."""

    max_tokens: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    chain: SamplerChain
    cancel_token: CancelToken | None
    serving: ServingOptions
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    tool_use: ToolUse | None = None


def parse_options(
    function: str,
    *,
    max_tokens: int | None = None,
    stop: Any = None,
    ignore_eos: bool = False,
    sampler: SamplerConfig | None = None,
    cancel_token: CancelToken | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    sampling: Mapping[str, Any],
) -> TextOptions:
    """`sampling` has fields of `SamplerConfig` and of `ServingOptions`, and `tool_use`.

    Raises ConfigError for values out of range, TypeError for keywords that `function` doesn't have.
    """
    if max_tokens is not None:
        max_tokens = check_int("max_tokens", max_tokens, 1, MAX_CONTEXT)
    if cancel_token is not None and not isinstance(cancel_token, CancelToken):
        raise ConfigError(f"cancel_token must be a CancelToken, not {type(cancel_token).__name__}")
    fields = dict(sampling)
    tool_use = check_tool_use(fields.pop("tool_use", None))
    serving = split_options(fields)
    chain = SamplerChain.from_config(make_sampler_config(function, sampler, fields))
    if tool_use is not None and tool_use.choice != "auto" and chain.config.constraint is not None:
        raise ConfigError(f"{chain.config.constraint[0]} is given, and calls of tools are required: give one of them")
    return TextOptions(
        max_tokens, check_stop(stop), check_bool("ignore_eos", ignore_eos), chain, cancel_token, serving,
        check_logprobs("logprobs", logprobs), check_logprobs("prompt_logprobs", prompt_logprobs), tool_use,
    )  # fmt: skip


def read_options(function: str, options: Mapping[str, Any]) -> TextOptions:
    """`parse_options` of the keywords of a call; raises what that raises."""
    known = {name: value for name, value in options.items() if name in _STREAM_FIELDS}
    sampling = {name: value for name, value in options.items() if name not in known}
    return parse_options(function, sampling=sampling, **known)


class TextMaker:
    """Builds requests for one engine."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, context_size: int, n_cached: int) -> None:
        """`n_cached`: tokens that the KV cache holds."""
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._context_size = context_size
        self._n_cached = n_cached
        # Requests draw their tokens one after another: one buffer does for all.
        self._scratch = Candidates()
        self._scorer = TokenScorer(self._token_bytes, self._scratch)
        self._grammars = Grammars(tokenizer)

    def _token_bytes(self, token: int) -> bytes:
        """Nothing for rows of logits beyond the vocabulary."""
        return self._tokenizer.token_bytes(token) if token < self._tokenizer.n_vocab else b""

    def _stream(self, tools: ToolUse | None) -> TokenStream:
        if tools is None:
            return self._tokenizer.stream(skip_special=True)
        return self._tokenizer.stream(skip_special=True, shown=tools.delimiters(self._tokenizer))

    def _scores(self, options: TextOptions) -> Scores | None:
        if options.logprobs is None and options.prompt_logprobs is None:
            return None
        return Scores(self._scorer, options.logprobs, options.prompt_logprobs)

    def _sequence(self, ids: list[int], max_tokens: int, options: TextOptions) -> Sequence:
        serving = options.serving.of_sequence()
        if options.prompt_logprobs is not None:
            serving["cache_key"] = None  # rows of logits aren't cached
        # The last token is drawn, but never computed.
        return Sequence(ids, len(ids) + max_tokens - 1, **serving)

    def ids(self, name: str, prompt: Any) -> list[int]:
        """Token ids of a prompt: text gets the special tokens that the model wants, ids are taken as they are.

        Raises ConfigError if there is nothing, TokenizerError for bad ids.
        """
        if isinstance(prompt, str) and not prompt:
            raise ConfigError(
                f"{name} is empty: give text, or token ids ([bos_id] for the mark of the beginning alone)"
            )
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else check_tokens(name, prompt, self._n_vocab)
        if not ids:
            raise ConfigError(f"{name} is empty: give at least one token")
        return ids

    def fitting(self, name: str, prompt: Any) -> list[int]:
        """`ids` of what needs no room for output. Raises ContextOverflowError too."""
        ids = self.ids(name, prompt)
        if len(ids) > self._context_size:
            raise ContextOverflowError(
                f"{name} has {len(ids)} tokens and context_size is {self._context_size}: shorten it, or load with a "
                "larger context_size"
            )
        return ids

    def limit(self, name: str, n_prompt: int, max_tokens: int | None) -> int:
        """How many tokens may be generated. Raises ContextOverflowError if the prompt leaves no room for one."""
        room = self._context_size - n_prompt
        if room < 1:
            raise ContextOverflowError(
                f"{name} has {n_prompt} tokens and context_size is {self._context_size}, which must also hold the "
                "output: shorten the prompt, or load with a larger context_size"
            )
        if max_tokens is not None:
            return min(room, max_tokens)
        return max(1, min(room, self._n_cached - n_prompt))

    def prepare(self, options: TextOptions) -> None:
        """Compiles what the text must follow. Raises GrammarError."""
        self._grammars.state(options.chain.config.constraint, options.tool_use)

    def requests(self, prompts: Named, options: TextOptions, outbox: Outbox) -> list[TextRequest]:
        """One request for each (name, prompt)."""
        return [
            self.request(self.ids(name, prompt), options, outbox, name=name, index=i)
            for i, (name, prompt) in enumerate(prompts)
        ]

    def request(
        self,
        ids: list[int],
        options: TextOptions,
        outbox: Outbox,
        *,
        name: str = "prompt",
        index: int = 0,
        **held: Any,
    ) -> TextRequest:
        """A request for text after `ids`; `held` are options of `Request`."""
        max_tokens = self.limit(name, len(ids), options.max_tokens)
        window = options.chain.config.repetition_penalty_window
        tools = options.tool_use
        return TextRequest(
            self._sequence(ids, max_tokens, options),
            outbox,
            sampler=Sampler(
                options.chain,
                prompt=ids[-window:] if window else (),
                scratch=self._scratch,
                grammar=self._grammars.state(options.chain.config.constraint, tools),
            ),
            stream=self._stream(tools),
            stops=StopMatcher(options.stops),
            max_tokens=max_tokens,
            end_ids=() if options.ignore_eos else self._tokenizer.eog_ids,
            scores=self._scores(options),
            tools=tools.detector if tools else None,
            index=index,
            cancel_token=options.cancel_token,
            **held,
        )


def answer(core: EngineCore, maker: TextMaker, ids: list[int], options: TextOptions, **held: Any) -> Chunks:
    """Chunks of what follows `ids`; the request is made and queued when the first is asked for."""
    outbox = Outbox(1)
    request = maker.request(ids, options, outbox, **held)
    with closing(chunks(core, [request], outbox, options.cancel_token)) as pieces:
        for _, chunk in pieces:
            yield chunk


def completion_of(request: TextRequest, pieces: list[Chunk], index: int | None = None) -> Completion:
    """All chunks of a finished request as one; `index`: of its prompt, if not the request's own."""
    return Completion(
        text="".join(piece.text for piece in pieces),
        token_ids=[token for piece in pieces for token in piece.token_ids],
        finish_reason=request.finish_reason or "cancelled",
        prompt_tokens=request.n_prompt,
        logprobs=request.scores.tokens if request.scores else None,
        timings=request.timings,
        index=request.index if index is None else index,
        prompt_logprobs=request.scores.prompt if request.scores else None,
        tool_calls=[call for piece in pieces for call in piece.tool_calls],
    )
