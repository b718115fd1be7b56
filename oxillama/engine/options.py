"""What a caller asks of a text, checked: the keywords of `generate`, `stream` and their like."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any

from oxillama.checks import check_bool, check_int, check_keywords
from oxillama.config import MAX_CONTEXT
from oxillama.engine.logprobs import check_logprobs
from oxillama.engine.prompts import check_stop, make_chain
from oxillama.engine.results import CancelToken
from oxillama.engine.serving import RequestOptions, ServingOptions, split_options
from oxillama.engine.speculation import NO_DRAFTS, DraftOptions, split_draft_options
from oxillama.engine.stopping import Criteria, StoppingCriterion, check_criteria
from oxillama.engine.tool_use import ToolUse, check_tool_use
from oxillama.errors import ConfigError
from oxillama.sampler_config import MAX_SEED, SamplerConfig
from oxillama.sampling import LogitsProcessor, SamplerChain
from oxillama.sampling.sampler import check_processors
from oxillama.speculative.rejection import check_chain

__all__ = [
    "GenerateOptions",
    "Prompt",
    "Stop",
    "StreamOptions",
    "TextOptions",
    "check_options",
    "parse_options",
    "read_options",
]

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
