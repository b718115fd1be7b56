"""Sampling keywords as a `SamplerConfig`; processors and stopping criteria in the engine's form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_float, check_int
from oxillama.compat.keywords import Keyword
from oxillama.compat.llama_grammar import LlamaGrammar
from oxillama.compat.wording import renamed
from oxillama.config import field_names
from oxillama.errors import ConfigError
from oxillama.sampler_config import SamplerConfig, idle_values

__all__ = [
    "CRITERIA",
    "CUTS",
    "FOR_TEXTS",
    "GRAMMAR",
    "MIROSTAT",
    "OCCURRENCES",
    "PROCESSOR",
    "REPEAT",
    "SEED",
    "TEMP",
    "TEMPERATURE",
    "TOP_K",
    "Criterion",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "engine_processors",
    "sampler_config",
]

Ids = NDArray[np.intc]
Scores = NDArray[np.single]
LogitsProcessor = Callable[[Ids, Scores], Scores]
StoppingCriteria = Callable[[Ids, Scores], bool]

# Keywords of several methods, whose orders differ, in groups that follow one another.
TOP_K = Keyword("top_k", 40, "honoured", "0 or less keeps all")
CUTS = (
    Keyword("top_p", 0.95, "honoured", ""),
    Keyword("min_p", 0.05, "honoured", ""),
    Keyword("typical_p", 1.0, "honoured", ""),
)
TEMP = Keyword("temp", 0.80, "honoured", "`temperature`")
TEMPERATURE = Keyword("temperature", 0.8, "honoured", "0: the likeliest token; below 0: the model's own distribution")
REPEAT = Keyword("repeat_penalty", 1.0, "honoured", "`repetition_penalty`")
OCCURRENCES = (
    Keyword("frequency_penalty", 0.0, "honoured", ""),
    Keyword("presence_penalty", 0.0, "honoured", ""),
)
MIROSTAT = (
    Keyword("tfs_z", 1.0, "refused", "tail-free sampling is no longer in llama.cpp either"),
    Keyword("mirostat_mode", 0, "honoured", "1 or 2; top_k, top_p, min_p, typical_p and temperature don't count then"),
    Keyword("mirostat_tau", 5.0, "honoured", ""),
    Keyword("mirostat_eta", 0.1, "honoured", ""),
)
PROCESSOR = (
    Keyword("penalize_nl", True, "refused", "newlines are tokens like others; use `logit_bias`"),
    Keyword("logits_processor", None, "honoured", "functions (input_ids, scores) that return scores"),
)
CRITERIA = Keyword("stopping_criteria", None, "honoured", "functions (input_ids, scores), before each token")
GRAMMAR = Keyword("grammar", None, "honoured", "a `LlamaGrammar`")
FOR_TEXTS = (
    PROCESSOR[1],
    GRAMMAR,
    Keyword("logit_bias", None, "honoured", "token id -> what is added to its logit"),
)
SEED = Keyword("seed", None, "honoured", "None: one that follows from the one before")
_MIROSTAT_NAMES = [one.name for one in MIROSTAT]
# Keywords that the engine has by the same name, and with the same meaning.
_SAME = [one.name for one in (*CUTS, *OCCURRENCES, *MIROSTAT) if one.name in field_names(SamplerConfig)]


def sampler_config(options: dict[str, Any], window: int, seed: int | None) -> SamplerConfig:
    """Settings of one call. window: tokens that penalties see. Raises ConfigError, which names the field."""
    temperature = check_float("temperature", options.get("temperature", options.get("temp")), -math.inf)
    mirostat = check_int("mirostat_mode", options["mirostat_mode"], 0, 2) if temperature > 0 else 0
    top_k = max(0, check_int("top_k", options["top_k"], -(1 << 31), (1 << 31) - 1))
    biases = _biases(options.get("logit_bias"))
    grammar = options.get("grammar")
    if grammar is not None and not isinstance(grammar, LlamaGrammar):
        raise ConfigError(f"grammar must be a LlamaGrammar or None, not {grammar!r:.60}")
    given: dict[str, Any] = {name: options[name] for name in _SAME if mirostat or name not in _MIROSTAT_NAMES}
    if temperature < 0:
        given |= idle_values(*(one.name for one in CUTS))
    with renamed():
        return SamplerConfig(
            temperature=1.0 if temperature < 0 or mirostat else temperature,
            top_k=0 if temperature < 0 else top_k,
            repetition_penalty=options["repeat_penalty"],
            repetition_penalty_window=window,
            mirostat=mirostat,
            logit_bias=biases,
            seed=seed,
            **given,
            **({} if grammar is None else grammar.constraint),
        )


def _biases(given: Any) -> dict[int, float] | None:
    if given is None:
        return None
    try:
        return {int(token): float(bias) for token, bias in given.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"logit_bias must map token ids to numbers, not {given!r:.60}") from None


class LogitsProcessorList(list[LogitsProcessor]):
    """Functions that change scores, one after another."""

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Functions of which each may end a text."""

    def __call__(self, input_ids: Ids, logits: Scores) -> bool:
        results = [criterion(input_ids, logits) for criterion in self]  # all are asked
        return any(results)


class MinTokensLogitsProcessor:
    """A processor that bans the end token until there are `min_tokens` tokens, for one text."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens, self.token_eos = min_tokens, token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


def engine_processors(given: Any) -> list[Callable[[list[int], NDArray[np.float32]], None]] | None:
    """Processors in the engine's form: they change the logits in place."""
    if given is None:
        return None
    processors = list(given) if isinstance(given, Iterable) else [given]
    for processor in processors:
        if not callable(processor):
            raise ConfigError(f"logits_processor must be a LogitsProcessorList or functions, not {processor!r:.60}")

    def apply(ids: list[int], logits: NDArray[np.float32]) -> None:
        tokens = np.array(ids, np.intc)
        for processor in processors:
            logits[:] = processor(tokens, logits)

    return [apply]


class Criterion:
    """A stopping criterion in the engine's form.

    It is asked before a token is drawn there, and after it here: of the tokens before the last one, with the logits
    that this one was drawn from. met: it ended the text, whose last token is not part of it.
    """

    def __init__(self, criteria: StoppingCriteria) -> None:
        if not callable(criteria):
            raise ConfigError(f"stopping_criteria must be a StoppingCriteriaList or a function, not {criteria!r:.60}")
        self._criteria = criteria
        self.met = False

    def __call__(self, ids: list[int], logits: NDArray[np.float32]) -> bool:
        self.met = bool(self._criteria(np.array(ids[:-1], np.intc), logits))
        return self.met
