"""Request options: the keywords of `generate` and its relatives, checked."""

import math
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from oxillama._util.checks import check_bool, check_choice, check_float, check_int, check_keywords
from oxillama.config import MAX_CONTEXT, SamplingOptions, field_names
from oxillama.core.draft_options import NO_DRAFTS, Acceptance, DraftLike, DraftOptions, split_draft_options
from oxillama.core.logprobs import check_logprobs
from oxillama.core.prompts import check_stop, make_chain
from oxillama.core.results import CancelToken
from oxillama.core.stopping import Criteria, StoppingCriterion, check_criteria
from oxillama.core.tool_use import ToolUse, check_tool_use
from oxillama.drafts.rejection import check_chain
from oxillama.errors import ConfigError
from oxillama.lora import LoraSet, Wanted, check_wanted
from oxillama.sampler_config import MAX_SEED, SamplerConfig
from oxillama.sampling import LogitsProcessor, SamplerChain
from oxillama.sampling.sampler import check_processors
from oxillama.scheduling.sequence import MAX_PRIORITY

__all__ = [
    "CacheKey",
    "DeadlineFrom",
    "GenerateOptions",
    "Prompt",
    "RequestOptions",
    "ServingOptions",
    "Stop",
    "StreamOptions",
    "TextOptions",
    "check_options",
    "parse_options",
    "read_options",
    "split_options",
]

DeadlineFrom = Literal["submit", "start"]


class CacheKey(NamedTuple):
    """What two sequences must have in common, besides tokens, for the KV of one to be that of the other.

    adapters: those that the weights are changed by. kv_type: how KV is stored. salt: whose it is.
    """

    adapters: tuple[tuple[str, float], ...]
    kv_type: str
    salt: str | None


class RequestOptions(SamplingOptions, total=False):
    """The keywords that are fields of `SamplerConfig`, `ServingOptions` or `DraftOptions`, and `tool_use`."""

    priority: int
    deadline: float | None
    deadline_from: DeadlineFrom | None
    cache_prompt: bool
    cache_salt: str | None
    lora: Any
    tool_use: ToolUse | None
    draft: DraftLike
    num_speculative: int
    acceptance: Acceptance
    adaptive: bool | None


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Every field is a keyword of `generate`, `stream` and `chat`.

    priority: requests of a higher one go first, and lose what is computed last; 0 to 100. Waiting makes up for it.
    deadline: seconds after which the request ends with the finish reason "deadline" and what there is by then. None is
        no limit.
    deadline_from: whether they count from when the request is queued ("submit") or from its first step in the model
        ("start"), so that waiting behind others takes nothing from it. None: from "start" in `batch`, whose prompts
        are queued long before their turn, and else from "submit".
    cache_prompt: begin with the KV of earlier requests that began alike, and leave it for others.
    cache_salt: only requests with the same one share beginnings, so that none can tell by its speed what others ask.
    lora: adapters, a list of (name, scale) or of names; [] for none, None for those that were pushed.

    Raises ConfigError, which names the field, its value and its range.
    """

    priority: int = 0
    deadline: float | None = None
    deadline_from: DeadlineFrom | None = None
    cache_prompt: bool = True
    cache_salt: str | None = None
    lora: Wanted = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "priority", check_int("priority", self.priority, 0, MAX_PRIORITY))
        if self.deadline is not None:
            object.__setattr__(self, "deadline", check_float("deadline", self.deadline, 0.0, above=True))
        if self.deadline_from is not None:
            check_choice("deadline_from", self.deadline_from, get_args(DeadlineFrom))
            if self.deadline is None:
                raise ConfigError("deadline_from says from when a deadline counts: give deadline too")
        check_bool("cache_prompt", self.cache_prompt)
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise ConfigError(f"cache_salt must be a str or None, not {self.cache_salt!r}")
        object.__setattr__(self, "lora", check_wanted("lora", self.lora))

    def cache_key(self, kv_type: str, loras: LoraSet) -> CacheKey | None:
        """Under which the prefix cache has what a request computes; None if it is neither to find nor to leave any."""
        return CacheKey(loras.key, kv_type, self.cache_salt) if self.cache_prompt else None

    def counted_from(self, default: DeadlineFrom) -> "ServingOptions":
        """The same with a deadline that counts from there, unless its caller said otherwise."""
        if self.deadline is None or self.deadline_from is not None:
            return self
        return replace(self, deadline_from=default)

    @property
    def time_limit(self) -> float:
        """Seconds that a request may take from its first step on; infinite unless its deadline counts from there."""
        return self.deadline if self.deadline is not None and self.deadline_from == "start" else math.inf

    def of_sequence(self, kv_type: str, loras: LoraSet) -> dict[str, Any]:
        """The same as options of `Sequence`, which uses these adapters; a deadline from "submit" counts from now."""
        deadline = math.inf
        if self.deadline is not None and self.deadline_from != "start":
            deadline = time.perf_counter() + self.deadline
        key = self.cache_key(kv_type, loras)
        return {"priority": self.priority, "deadline": deadline, "cache_key": key, "weights": loras.key}


_FIELDS = field_names(ServingOptions)


def split_options(options: dict[str, Any]) -> ServingOptions:
    """Takes the fields of `ServingOptions` out of keywords. Raises ConfigError for their values."""
    return ServingOptions(**{name: options.pop(name) for name in _FIELDS if name in options})


Prompt = str | SequenceOf[int]
Stop = str | SequenceOf[str] | None

MAX_COMPLETIONS = 1024  # of one prompt; each takes a place in the queue


class StreamOptions(RequestOptions, total=False):
    """The keywords of `Engine.stream` and `Engine.batch`."""

    max_tokens: int | None
    stop: Stop
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


# n decides what comes back, so that each function has it in its own signature.
_STREAM_FIELDS = {"n"} | set(StreamOptions.__annotations__) - set(RequestOptions.__annotations__)
_ALL = ("n", *StreamOptions.__annotations__)
# Every keyword of each function that takes these options.
_KEYWORDS = {
    "generate": ("on_token", *_ALL),
    "stream": _ALL,
    "batch": ("ordered", "max_in_flight", "errors", "progress", *_ALL),
    "chat": (
        *("tools", "tool_choice", "tool_format", "constrain_tools", "chat_template", "stream", "on_token"),
        *_ALL,
    ),
    "infill": ("suffix_first", "stream", "on_token", *_ALL),
}


@dataclass(frozen=True)
class TextOptions:
    """What a caller asks for, checked. max_tokens None: up to the context's end; logprobs None: none; n None: one."""

    max_tokens: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    chain: SamplerChain
    cancel_token: CancelToken | None
    serving: ServingOptions
    processors: tuple[LogitsProcessor, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int | None = None
    tool_use: ToolUse | None = None
    drafts: DraftOptions = NO_DRAFTS
    criteria: tuple[StoppingCriterion, ...] = ()
    echo: bool = False

    @property
    def n_each(self) -> int:
        """Completions of each prompt."""
        return self.n or 1

    def of_completion(self, i: int) -> "TextOptions":
        """Those of the i-th completion of a prompt alone: with its own seed, if there is one."""
        config = self.chain.config
        if config.seed is None or not i:
            return self
        return replace(self, chain=self.chain.with_config(replace(config, seed=(config.seed + i) & MAX_SEED)))


def check_options(function: str, options: Mapping[str, Any]) -> None:
    """Raises TypeError for keywords that `function` (a key of _KEYWORDS) doesn't have."""
    check_keywords(function, options, _KEYWORDS[function])


def parse_options(
    function: str,
    *,
    max_tokens: int | None = None,
    stop: Any = None,
    ignore_eos: bool = False,
    sampler: SamplerConfig | SamplerChain | None = None,
    logits_processors: Any = None,
    stopping_criteria: Any = None,
    echo: bool = False,
    cancel_token: CancelToken | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    n: int | None = None,
    sampling: Mapping[str, Any],
    defaults: SamplerConfig,
) -> TextOptions:
    """`sampling` has fields of `SamplerConfig`, `ServingOptions` and `DraftOptions`, and `tool_use`; `defaults` are the
    engine's for fields of `SamplerConfig`.

    Raises ConfigError for values out of range, TypeError for keywords that `function` doesn't have.
    """
    if max_tokens is not None:
        max_tokens = check_int("max_tokens", max_tokens, 1, MAX_CONTEXT)
    if cancel_token is not None and not isinstance(cancel_token, CancelToken):
        raise ConfigError(f"cancel_token must be a CancelToken, not {type(cancel_token).__name__}")
    fields = dict(sampling)
    check_options(function, fields)
    tool_use = check_tool_use(fields.pop("tool_use", None))
    serving, drafts = split_options(fields), split_draft_options(fields)
    chain = make_chain(sampler, fields, defaults)
    if drafts.acceptance == "rejection":
        check_chain(chain)
    if tool_use is not None and tool_use.choice != "auto" and chain.config.constraint is not None:
        raise ConfigError(f"{chain.config.constraint[0]} is given, and calls of tools are required: give one of them")
    if check_bool("echo", echo) and tool_use is not None:
        raise ConfigError("echo and tool_use are both given: calls are found in what is generated alone")
    return TextOptions(
        max_tokens, check_stop(stop), check_bool("ignore_eos", ignore_eos), chain, cancel_token, serving,
        check_processors(logits_processors), check_logprobs("logprobs", logprobs),
        check_logprobs("prompt_logprobs", prompt_logprobs),
        None if n is None else check_int("n", n, 1, MAX_COMPLETIONS), tool_use, drafts,
        check_criteria(stopping_criteria), echo,
    )  # fmt: skip


def read_options(function: str, options: Mapping[str, Any], defaults: SamplerConfig) -> TextOptions:
    """`parse_options` of the keywords of a call; raises what that raises."""
    known = {name: value for name, value in options.items() if name in _STREAM_FIELDS}
    sampling = {name: value for name, value in options.items() if name not in known}
    return parse_options(function, sampling=sampling, defaults=defaults, **known)
