"""Keywords of calls that are fields of settings classes, spelt out for static typing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from oxillama.sampler_config import JsonSchema, SchemaMode

__all__ = ["DeadlineFrom", "DrawOptions", "SamplingOptions", "ServingKeywords", "ShapingOptions"]

DeadlineFrom = Literal["submit", "start"]


class DrawOptions(TypedDict, total=False):
    """Keywords of drawing a token, of a text that is written in order and of one that is written whole."""

    temperature: float
    top_k: int
    top_p: float
    seed: int | None


class ShapingOptions(TypedDict, total=False):
    """Keywords that say what may come, and not how it is drawn; a beam search has them, too."""

    grammar: str | None
    json_schema: JsonSchema | None
    regex: str | None
    choices: Sequence[str] | None
    schema_mode: SchemaMode
    logit_bias: Mapping[int, float] | None
    banned_tokens: Iterable[int]
    allowed_token_ids: Iterable[int] | None
    bad_words: Iterable[str | Iterable[int]]
    min_tokens: int


class SamplingOptions(DrawOptions, ShapingOptions, total=False):
    """The fields of `SamplerConfig` as keywords."""

    min_p: float
    typical_p: float
    top_a: float
    eta_cutoff: float
    epsilon_cutoff: float
    top_n_sigma: float
    repetition_penalty: float
    repetition_penalty_window: int
    frequency_penalty: float
    presence_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_window: int | None
    dry_sequence_breakers: Iterable[str | Iterable[int]]
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    dynatemp_range: float
    dynatemp_exponent: float


class ServingKeywords(TypedDict, total=False):
    """The fields of `ServingOptions` as keywords."""

    priority: int
    deadline: float | None
    deadline_from: DeadlineFrom | None
    cache_prompt: bool
    cache_salt: str | None
    lora: Any
