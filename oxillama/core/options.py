"""Request options: the keywords of `generate` and its relatives, checked."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_keywords
from oxillama._util.settings import check_fields, setting, settings, settings_of
from oxillama.chat.format import ChatFormat
from oxillama.chat.shapes import ReasoningFormat
from oxillama.chat.tool_format import ToolFormat
from oxillama.config import field_names
from oxillama.core.answer_options import ToolUse, check_tool_use
from oxillama.core.draft_options import (
    DRAFT_FIELDS,
    NO_DRAFTS,
    DraftLike,
    DraftOptions,
    read_drafts,
)
from oxillama.core.logprobs import MAX_LOGPROBS
from oxillama.core.prompts import Tools
from oxillama.core.results import CancelToken
from oxillama.errors import ConfigError
from oxillama.keywords import DeadlineFrom, SamplingOptions, ServingKeywords
from oxillama.lora import LoraSet, Wanted, check_wanted
from oxillama.sampler_config import MAX_SEED, SamplerConfig
from oxillama.sampling import LogitsProcessor, SamplerChain
from oxillama.sampling.chain import make_chain
from oxillama.sampling.rejection import check_chain
from oxillama.sampling.sampler import check_processors
from oxillama.text_settings import Acceptance, ServingSettings, TextSettings

__all__ = [
    "SERVING_FIELDS",
    "BatchOptions",
    "CacheKey",
    "ChatOptions",
    "Criteria",
    "DeadlineFrom",
    "GenerateOptions",
    "InfillOptions",
    "Progress",
    "Prompt",
    "PromptOptions",
    "RequestOptions",
    "ServingOptions",
    "Stop",
    "StoppingCriterion",
    "StreamOptions",
    "TextOptions",
    "check_criteria",
    "check_limit",
    "check_options",
    "is_met",
    "read_options",
]


class CacheKey(NamedTuple):
    """Properties that two sequences must share, besides tokens, for the KV of one to be that of the other.

    adapters: those that the weights are changed by. kv_type: how KV is stored. salt: whose it is.
    """

    adapters: tuple[tuple[str, float], ...]
    kv_type: str
    salt: str | None


class RequestOptions(SamplingOptions, ServingKeywords, total=False):
    """The keywords that are fields of `SamplerConfig`, `ServingOptions` or `DraftOptions`, and `tool_use`."""

    tool_use: ToolUse | None
    draft: DraftLike
    num_speculative: int
    acceptance: Acceptance
    adaptive: bool | None


@settings()
@dataclass(frozen=True, slots=True)
class ServingOptions(ServingSettings):
    """Every field is a keyword of the calls for texts; some are of `session` and `beam_search`.

    {fields}

    Raises ConfigError, which names the field, its value and its range.
    """

    lora: Wanted = setting(
        None,
        "adapters, a list of (name, scale) or of names; [] for none, None for those that were pushed.",
        check=check_wanted,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.deadline_from is not None and self.deadline is None:
            raise ConfigError("deadline_from says from when a deadline counts: give deadline too")

    def cache_key(self, kv_type: str, loras: LoraSet) -> CacheKey | None:
        """Under which the prefix cache has what a request computes; None if it is neither to find nor to leave any."""
        return CacheKey(loras.key, kv_type, self.cache_salt) if self.cache_prompt else None

    def counted_from(self, default: DeadlineFrom) -> "ServingOptions":
        """Copy with a deadline that counts from there, unless its caller said otherwise."""
        if self.deadline is None or self.deadline_from is not None:
            return self
        return replace(self, deadline_from=default)

    @property
    def time_limit(self) -> float:
        """Seconds that a request may take from its first step on; infinite unless its deadline counts from there."""
        return self.deadline if self.deadline is not None and self.deadline_from == "start" else math.inf

    def of_sequence(self, kv_type: str, loras: LoraSet) -> dict[str, Any]:
        """Options of `Sequence`, which uses these adapters; a deadline from "submit" counts from now."""
        deadline = math.inf
        if self.deadline is not None and self.deadline_from != "start":
            deadline = time.perf_counter() + self.deadline
        key = self.cache_key(kv_type, loras)
        return {"priority": self.priority, "deadline": deadline, "cache_key": key, "weights": loras.key}


SERVING_FIELDS = field_names(ServingOptions)
_NO_SERVING = ServingOptions()


# (token ids so far, the logits that the last of them was drawn from, float32 [n_vocab]): whether the text ends here.
StoppingCriterion = Callable[[list[int], NDArray[np.float32]], bool]
Criteria = StoppingCriterion | SequenceOf[StoppingCriterion] | None

Prompt = str | SequenceOf[int]
Stop = str | SequenceOf[str] | None
Progress = bool | Callable[[int, int | None], object]

MAX_COMPLETIONS = 1024  # of one prompt; each takes a place in the queue


class StreamOptions(RequestOptions, total=False):
    """The keywords of `Engine.stream`; `TextOptions` says what they mean."""

    max_tokens: int | None
    stop: Stop
    stop_token_ids: Iterable[int]
    include_stop: bool
    ignore_eos: bool
    sampler: SamplerConfig | SamplerChain | None
    logits_processors: SequenceOf[LogitsProcessor] | None
    stopping_criteria: Criteria
    echo: bool
    cancel_token: CancelToken | None
    logprobs: int | None
    prompt_logprobs: int | None


class GenerateOptions(StreamOptions, total=False):
    """The keywords of `Engine.generate`."""

    on_token: Callable[..., object] | None


class PromptOptions(TypedDict, total=False):
    """The keywords of `Engine.chat_tokens`; `chat_call` says what they mean."""

    tools: Tools
    tool_format: ChatFormat | ToolFormat | str | None
    chat_template: str | None
    template_kwargs: Mapping[str, Any] | None
    reasoning_effort: str | None
    add_generation_prompt: bool | None
    continue_final_message: bool | str | None


class ChatOptions(GenerateOptions, PromptOptions, total=False):
    """The keywords of `Engine.chat`."""

    tool_choice: str | Mapping[str, Any] | None
    constrain_tools: bool | None
    parallel_tool_calls: bool | None
    reasoning: ReasoningFormat | str | None
    reasoning_budget: int | None


class InfillOptions(GenerateOptions, total=False):
    """The keywords of `Engine.infill`."""

    suffix_first: bool


class BatchOptions(StreamOptions, total=False):
    """The keywords of `Engine.batch`; `BatchSettings` says what its own mean."""

    ordered: bool
    max_in_flight: int
    progress: Progress


# n, stream and errors decide what comes back, so that each function has them in its own signature.
_KEYWORDS = {
    "generate": dict.fromkeys(("n", *GenerateOptions.__annotations__)),
    "stream": dict.fromkeys(("n", *StreamOptions.__annotations__)),
    "batch": dict.fromkeys(("n", "errors", *BatchOptions.__annotations__)),
    "chat_tokens": dict.fromkeys(PromptOptions.__annotations__),
    "chat": dict.fromkeys(("n", "stream", *ChatOptions.__annotations__)),
    "infill": dict.fromkeys(("n", "stream", *InfillOptions.__annotations__)),
}


def check_criteria(name: str, criteria: Any) -> tuple[StoppingCriterion, ...]:
    """`criteria` as a tuple, of None an empty one. Raises ConfigError unless all can be called."""
    if criteria is None:
        return ()
    if callable(criteria):
        return (criteria,)
    if isinstance(criteria, str | bytes | Mapping) or not isinstance(criteria, Iterable):
        raise ConfigError(f"{name} must be a function or a list of them, not {type(criteria).__name__}")
    found = tuple(criteria)
    for i, criterion in enumerate(found):
        if not callable(criterion):
            raise ConfigError(f"{name}[{i}] must be a function (ids, logits), not {criterion!r}")
    return found


def _check_cancel_token(name: str, token: Any) -> CancelToken:
    if not isinstance(token, CancelToken):
        raise ConfigError(f"{name} must be a CancelToken, not {type(token).__name__}")
    return token


@settings(suggests=False)
@dataclass(frozen=True)
class TextOptions(TextSettings):
    """Options of a text, checked.

    sampler: a `SamplerConfig` or a `SamplerChain`; its fields are keywords by themselves too. A list's prompts all use
        the same seed. Without a sampler, `sampling_defaults` stand for the fields that are not given.
    on_token: called with each piece of text as it comes, (piece) for one prompt and (index, piece) for a list; with n
        always (index, piece), where index is n times the prompt's, plus the completion's. What it raises ends this call
        and nothing else. Not with streams, nor batches.
    {fields}

    Also `lora`, `priority`, `deadline`, `deadline_from`, `cache_prompt` and `cache_salt`: see `ServingOptions`; and
    `draft`, `num_speculative`, `acceptance` and `adaptive`, which make it quicker: see `DraftOptions`.
    """

    chain: SamplerChain
    serving: ServingOptions = ServingOptions()
    drafts: DraftOptions = NO_DRAFTS
    logits_processors: tuple[LogitsProcessor, ...] = setting(
        (),
        "functions (token ids so far, logits) that change a copy of the logits, float32 [n_vocab], in place before "
        "everything else; they run inside the engine's step. What one raises ends its request alone.",
        check=check_processors,
    )
    stopping_criteria: tuple[StoppingCriterion, ...] = setting(
        (),
        "a function (token ids so far, logits) -> bool, or a list of them, called after each token. The ids are "
        "those of prompt and text. True from one ends the text, whose last token this is, with finish_reason "
        "\"stop\". The logits, float32 [n_vocab], are the model's that the token was drawn from, and can't be written. "
        "They run inside the engine's step; what one raises ends its request alone.",
        check=check_criteria,
    )
    cancel_token: CancelToken | None = setting(
        None, "lets another thread, or on_token, stop it; what there is by then is returned.", check=_check_cancel_token
    )
    logprobs: int | None = setting(
        None,
        "give each token's log-probability by the model's own distribution (before penalties, temperature, cuts "
        "and grammar), with this many of the likeliest tokens in its place: 0 to 1024, all if there are fewer.",
        most=MAX_LOGPROBS,
    )
    prompt_logprobs: int | None = setting(
        None,
        "the same for the tokens of the prompt, which then is computed whole: what others left in the prefix "
        "cache is not used.",
        most=MAX_LOGPROBS,
    )
    n: int | None = setting(
        None,
        "so many completions of each prompt, which is computed once: a list of them in the place of each, also "
        "for 1. Completion i is that of the same call without n and with seed + i (modulo 2^64, as vLLM seeds them).",
        least=1,
        most=MAX_COMPLETIONS,
    )
    tool_use: ToolUse | None = setting(
        None,
        "a `ToolUse`: reasoning and calls of tools are found in the text, and calls are held to their schemas. "
        "`chat` makes it of its own options.",
        check=check_tool_use,
    )
    n_each: int = field(init=False, default=1)  # completions of each prompt

    def __post_init__(self) -> None:
        """Raises ConfigError for options that exclude each other; `read_options` checks each by itself."""
        vars(self)["n_each"] = self.n or 1
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise ConfigError(
                "max_tokens must be at least 1, not 0, unless prompt_logprobs asks for those of the prompt"
            )
        if self.tool_use is not None:
            self._check_tool_use(self.tool_use)
        if self.drafts.acceptance == "rejection":
            check_chain(self.chain)

    def _check_tool_use(self, tool_use: ToolUse) -> None:
        constraint = self.chain.config.constraint
        if tool_use.choice != "auto" and constraint is not None:
            raise ConfigError(f"{constraint[0]} is given, and calls of tools are required: give one of them")
        if self.echo:
            raise ConfigError("echo and tool_use are both given: calls are found in what is generated alone")

    def of_completion(self, i: int) -> "TextOptions":
        """Options of the i-th completion of a prompt alone: with its own seed, if there is one."""
        config = self.chain.config
        if config.seed is None:
            return self
        return replace(self, chain=self.chain.with_config(replace(config, seed=(config.seed + i) & MAX_SEED)))


_TEXT_FIELDS = settings_of(TextOptions)
# The class that has each keyword as a field; `SamplerConfig` has the others.
_CLASSES: dict[str, type] = {
    **dict.fromkeys(_TEXT_FIELDS, TextOptions),
    **dict.fromkeys(SERVING_FIELDS, ServingOptions),
    **dict.fromkeys(DRAFT_FIELDS, DraftOptions),
}


def check_options(function: str, options: Iterable[str]) -> None:
    """Raises TypeError for keywords that `function` (a key of _KEYWORDS) doesn't have."""
    check_keywords(function, options, _KEYWORDS[function])


def read_options(function: str, options: Mapping[str, Any], defaults: SamplerChain) -> TextOptions:
    """The keywords of a call, checked; `defaults` are the engine's for fields of `SamplerConfig`.

    Raises ConfigError for values out of range, TypeError for keywords that `function` doesn't have.
    """
    if not options.keys() <= _KEYWORDS[function].keys():
        check_options(function, options)
    given: dict[type, dict[str, Any]] = {TextOptions: {}, ServingOptions: {}, DraftOptions: {}, SamplerConfig: {}}
    for name, value in options.items():
        if value is not None:  # else it isn't given
            given[_CLASSES.get(name, SamplerConfig)][name] = value
    serving = ServingOptions(**given[ServingOptions]) if given[ServingOptions] else _NO_SERVING
    drafts = read_drafts(given[DraftOptions]) if given[DraftOptions] else NO_DRAFTS
    fields = given[SamplerConfig]
    chain = make_chain(fields.pop("sampler", None), fields, defaults) if fields else defaults
    own = given[TextOptions]
    if own:
        for name, one in _TEXT_FIELDS.items():
            if name in own:
                own[name] = one.check(name, own[name])
    found = TextOptions(chain, serving, drafts, **own)
    if chain.config.min_tokens:
        check_limit(found)
    return found


def check_limit(options: TextOptions) -> None:
    """Raises ConfigError for fewer tokens at most than at least."""
    least, most = options.chain.config.min_tokens, options.max_tokens
    if most is not None and least > most:
        raise ConfigError(f"min_tokens must be at most max_tokens, {most}, not {least}")


def is_met(criteria: Iterable[StoppingCriterion], tokens: list[int], row: NDArray[np.float32]) -> bool:
    """Whether one of them ends a text, prompt included, by the row of logits that its last token was drawn from.

    Each gets a list of its own, and all the same copy of the row, which can't be written. Raises ConfigError for an
    answer that is neither True nor False, and what they raise.
    """
    logits = row.copy()
    logits.flags.writeable = False
    for i, criterion in enumerate(criteria):
        answer = criterion(tokens[:], logits)
        if not isinstance(answer, bool | np.bool_):
            raise ConfigError(f"stopping_criteria[{i}] must return True or False, not {answer!r:.60}")
        if answer:
            return True
    return False
