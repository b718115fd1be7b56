"""Sampling settings: frozen dataclasses that check themselves."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, TypedDict

from oxillama._util.checks import MAX_CONTEXT, check_choice, check_float, check_int, is_unicode, suggests_fields
from oxillama._util.json_values import unique_keys
from oxillama._util.text_files import without_mark
from oxillama.errors import ConfigError

__all__ = [
    "CONSTRAINTS",
    "SCHEMA_MODES",
    "Biases",
    "JsonSchema",
    "SamplerConfig",
    "SamplingOptions",
    "SchemaMode",
    "Texts",
    "checked_constraints",
    "checked_ids",
]

JsonSchema = Mapping[str, Any] | bool | str
SchemaMode = Literal["generate", "full"]
SCHEMA_MODES = ("generate", "full")

CONSTRAINTS = ("grammar", "json_schema", "regex", "choices")


def checked_constraints(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of these names in the form in which they are kept, which can't be changed: texts, and a tuple.

    Raises ConfigError for values of another type, and if more than one is given.
    """
    named = [name for name in CONSTRAINTS if given[name] is not None]
    if len(named) > 1:
        raise ConfigError(
            f"{named[0]} and {named[1]} are both given: a text can follow one of {', '.join(CONSTRAINTS)}"
        )
    return {name: _CHECKS[name](given[name]) for name in named}


def _grammar(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"grammar must be GBNF as a str or None, not {value!r:.60}")
    return value


def _regex(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"regex must be a pattern as a str or None, not {value!r:.60}")
    return value


def _choices(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"choices must be a list of texts or None, not {value!r:.60}")
    texts = tuple(value)
    if not texts:
        raise ConfigError("choices must hold at least one text, not an empty list")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(f"choices[{i}] must be a str, not {text!r:.60}")
    return texts


def _json_schema(value: Any) -> str:
    """The schema as JSON text: its order counts, and it can't be changed later."""
    try:
        if isinstance(value, str):
            text = without_mark(value)
            value = json.loads(text, object_pairs_hook=unique_keys)
        else:
            text = json.dumps(value, allow_nan=False)
            _check_keys(value)
    except RecursionError:
        raise ConfigError("json_schema nests too deeply") from None
    except (TypeError, ValueError) as error:
        remedy = f"; give {value.__name__}.model_json_schema()" if hasattr(value, "model_json_schema") else ""
        raise ConfigError(f"json_schema must be a schema as a dict, a bool or JSON text: {error}{remedy}") from None
    if not isinstance(value, Mapping | bool):
        raise ConfigError(f"json_schema must be an object, true or false, not {text:.60}")
    return text


def _check_keys(value: Any) -> None:
    """json.dumps makes texts of other keys."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise TypeError(f"keys are str, not {key!r:.60}")
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item


_CHECKS = {"grammar": _grammar, "json_schema": _json_schema, "regex": _regex, "choices": _choices}


MAX_SEED = (1 << 64) - 1
MAX_TOKEN = (1 << 31) - 1  # ids are 32-bit integers in the files
# Each token is looked at for each breaker, back to its whole length.
MAX_BREAKERS = 256
MAX_BREAKER = 256
MAX_WORDS = 16384
MAX_WORD = 256

Texts = tuple[str | tuple[int, ...], ...]


class Biases(Mapping[int, float]):
    """A mapping that can't be changed: token -> what is added to its logit."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[int, float]) -> None:
        self._values = dict(values)

    def __getitem__(self, token: int) -> float:
        return self._values[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


@suggests_fields
@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """How the next token is chosen. Every field is a keyword of `generate`, `stream` and `chat`.

    A call that gives no `sampler` takes the fields that it doesn't give from `Engine.sampling_defaults`: those that the
    model's file recommends, and else the ones here. With temperature=0 in the call, its penalties are those that the
    call gives, and else none: it is the likeliest token. A SamplerConfig given as `sampler` counts as a whole.

    The stages run in the order in which they stand here; those that cut keep at least one token.

    logit_bias: token id -> what is added to its logit; minus infinity bans it.
    banned_tokens: ids of tokens that never come.
    allowed_token_ids: ids of the only tokens that may come, the end's too; None allows all.
    bad_words: strings (or lists of token ids) that the text doesn't have: where the tokens of one stand but for the
        last, that can't come. A string counts as its tokens alone and as those after a space; other tokens may still
        spell it. What the prompt ends with doesn't count.
    min_tokens: tokens that a text has at least: before, no token can end it, stop strings in it don't count and no
        stopping criterion is asked.
    repetition_penalty: divides the positive logits of recent tokens and multiplies their other logits; 1 is none.
    frequency_penalty: taken off a recent token's logit for each time that it occurs; negative ones make it likelier.
    presence_penalty: taken off once.
    repetition_penalty_window: how many recent tokens these three see, those of the prompt included; 0 is none.
    dry_multiplier: a token that would lengthen a repetition of n >= dry_allowed_length tokens loses dry_multiplier *
        dry_base ** (n - dry_allowed_length); 0 is none. The whole text counts, or the last `dry_window` tokens.
    dry_sequence_breakers: strings (or lists of token ids) that no repetition reaches across.
    top_n_sigma: keep logits that are at most so many standard deviations below the highest; 0 keeps all.
    grammar: GBNF that the text must follow; it ends where the grammar may. None allows any text.
    json_schema: a schema (a dict, a bool or JSON text) that the text, as JSON, must follow. It is kept as JSON text.
    regex: a pattern that the whole text must match. choices: texts of which it must be one.
        One of grammar, json_schema, regex and choices can be given.
    schema_mode: "generate" holds the text to what programs read easily of a schema's instances (and of a tool's
        arguments): integers are at most 19 digits without point or exponent, other numbers have about 17 digits, values
        that the schema lists are spelled as `json.dumps(..., ensure_ascii=False)` does, objects have no properties but
        those that the schema names, unless `additionalProperties` says which. "full" allows all instances.
    mirostat: 1 or 2 (its version) steers to a surprise of `mirostat_tau` bits a token, in steps of `mirostat_eta`, and
        takes the place of all that follows but the temperature; 0 is off.
    top_k: keep the k likeliest tokens; 0 keeps all.
    typical_p: keep the tokens whose surprise is nearest to the expected one, with probability p together; 1 keeps all.
    top_p: keep the fewest likeliest tokens whose probabilities add up to p; 1 keeps all.
    min_p: keep tokens at least p times as likely as the likeliest; 0 keeps all.
    top_a: keep tokens with at least a times the square of the highest probability; 0 keeps all.
    eta_cutoff: keep tokens with a probability of min(eta, sqrt(eta) * exp(-entropy)); 0 keeps all.
    epsilon_cutoff: keep tokens with this probability; 0 keeps all.
    xtc_probability: how often all tokens with a probability of xtc_threshold go, except the least likely of them.
    temperature: 0 takes the likeliest token (after the grammar); higher is more random.
    dynatemp_range: the temperature goes from this much below to this much above, with the entropy (normalised) to the
        power of `dynatemp_exponent`; 0 is off.
    seed: the same seed gives the same text; None is random.

    Raises ConfigError, which names the field, its value and its range.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_penalty_window: int = 64
    seed: int | None = None
    grammar: str | None = None
    json_schema: JsonSchema | None = None
    regex: str | None = None
    choices: Sequence[str] | None = None
    typical_p: float = 1.0
    top_a: float = 0.0
    eta_cutoff: float = 0.0
    epsilon_cutoff: float = 0.0
    top_n_sigma: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int | None = None
    dry_sequence_breakers: Iterable[str | Iterable[int]] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    banned_tokens: Iterable[int] = ()
    schema_mode: SchemaMode = "generate"
    allowed_token_ids: Iterable[int] | None = None
    bad_words: Iterable[str | Iterable[int]] = ()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        given = {name for name, default in _DEFAULTS.items() if getattr(self, name) is not default}
        for name, (least, most) in _FLOATS.items():
            if name in given:
                self._set(name, check_float(name, getattr(self, name), least, most, above=name in _ABOVE))
        for name, (low, high) in _INTS.items():
            if name in given and (getattr(self, name) is not None or name not in _OPTIONAL):
                self._set(name, check_int(name, getattr(self, name), low, high))
        if not given.isdisjoint(CONSTRAINTS):
            for name, checked in checked_constraints({name: getattr(self, name) for name in CONSTRAINTS}).items():
                self._set(name, checked)
        check_choice("schema_mode", self.schema_mode, SCHEMA_MODES)
        if self.mirostat and not self.temperature:
            raise ConfigError("temperature must be above 0 with mirostat, which draws at random, not 0")
        if "dry_sequence_breakers" in given:
            breakers = _checked_texts("dry_sequence_breakers", self.dry_sequence_breakers, MAX_BREAKERS, MAX_BREAKER)
            self._set("dry_sequence_breakers", breakers)
        if self.logit_bias is not None:
            self._set("logit_bias", _checked_biases(self.logit_bias))
        if "banned_tokens" in given:
            self._set("banned_tokens", checked_ids("banned_tokens", self.banned_tokens))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", checked_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ConfigError("allowed_token_ids must hold at least one token id, or be None to allow all")
        if "bad_words" in given:
            self._set("bad_words", _checked_texts("bad_words", self.bad_words, MAX_WORDS, MAX_WORD))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def constraint(self) -> tuple[str, Any] | None:
        """(name, value) of what the text must follow, if there is something."""
        for name in CONSTRAINTS:
            value = getattr(self, name)
            if value is not None:
                return name, value
        return None

    @property
    def masking(self) -> str | None:
        """Name of the first field for which a chain needs the stage `masks`, if there is one."""
        if self.allowed_token_ids is not None:
            return "allowed_token_ids"
        return "bad_words" if self.bad_words else "min_tokens" if self.min_tokens else None

    def check_ids(self, n_vocab: int) -> None:
        """Raises ConfigError if a field has tokens that a vocabulary doesn't have."""
        given: list[tuple[str, Iterable[int]]] = [
            ("logit_bias", self.logit_bias or ()),
            ("banned_tokens", self.banned_tokens),
            ("allowed_token_ids", self.allowed_token_ids or ()),
        ]
        given += [("dry_sequence_breakers", ids) for ids in self.dry_sequence_breakers if not isinstance(ids, str)]
        given += [("bad_words", ids) for ids in self.bad_words if not isinstance(ids, str)]
        for name, ids in given:
            highest = max(ids, default=0)
            if highest >= n_vocab:
                raise ConfigError(f"{name} must have token ids of this model, from 0 to {n_vocab - 1}, not {highest}")

    @classmethod
    def greedy(cls) -> Self:
        """Always the likeliest token: temperature 0 and no penalty."""
        return cls(temperature=0.0)

    @classmethod
    def original(cls) -> Self:
        """The defaults of the original runtime: those here, with a repetition penalty of 1.1 over 64 tokens."""
        return cls(temperature=0.7, top_k=40, top_p=0.9, repetition_penalty=1.1, repetition_penalty_window=64)

    @classmethod
    def mirostat_v2(cls, tau: float = 5.0, eta: float = 0.1) -> Self:
        """Mirostat (version 2) alone: a surprise of `tau` bits a token, steps of `eta`; no penalty, temperature 1."""
        return cls(temperature=1.0, mirostat=2, mirostat_tau=tau, mirostat_eta=eta)


# What a field has that isn't given, which needs no check.
_DEFAULTS = {field.name: field.default for field in fields(SamplerConfig)}
# Fields with the least and the highest value that they can have.
_FLOATS = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "top_a": (0.0, 1.0),
    "eta_cutoff": (0.0, 1.0),
    "epsilon_cutoff": (0.0, 1.0),
    "top_n_sigma": (0.0, math.inf),
    "repetition_penalty": (0.0, math.inf),
    "frequency_penalty": (-1000.0, 1000.0),
    "presence_penalty": (-1000.0, 1000.0),
    "dry_multiplier": (0.0, math.inf),
    "dry_base": (1.0, 1000.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat_tau": (0.0, 1000.0),
    "mirostat_eta": (0.0, 10.0),
    "dynatemp_range": (0.0, math.inf),
    "dynatemp_exponent": (0.0, math.inf),
}
_ABOVE = ("repetition_penalty",)  # than zero
_INTS = {
    "top_k": (0, MAX_TOKEN),
    "repetition_penalty_window": (0, MAX_CONTEXT),
    "dry_allowed_length": (1, MAX_CONTEXT),
    "dry_window": (1, MAX_CONTEXT),
    "mirostat": (0, 2),
    "min_tokens": (0, MAX_CONTEXT),
    "seed": (0, MAX_SEED),
}
_OPTIONAL = ("dry_window", "seed")


def checked_ids(name: str, ids: Any) -> tuple[int, ...]:
    """`ids` as a tuple of token ids. Raises ConfigError, which names the first that is none."""
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise ConfigError(f"{name} must be a list of token ids, not {ids!r}")
    return tuple(check_int(f"{name}[{i}]", token, 0, MAX_TOKEN) for i, token in enumerate(ids))


def _checked_biases(biases: Any) -> Biases:
    if not isinstance(biases, Mapping):
        raise ConfigError(f"logit_bias must be a mapping of token ids to numbers or None, not {biases!r}")
    checked = {}
    for token, bias in biases.items():
        token = check_int("logit_bias's token", token, 0, MAX_TOKEN)
        banned = isinstance(bias, float) and bias == -math.inf
        checked[token] = bias if banned else check_float(f"logit_bias[{token}]", bias, -1e30, 1e30)
    return Biases(checked)


def _checked_texts(name: str, given: Any, most: int, longest: int) -> Texts:
    """At most `most` strings or lists of token ids, each of 1 to `longest` characters or tokens."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f"{name} must be a list of strings, not {given!r}")
    checked: list[str | tuple[int, ...]] = []
    for i, item in enumerate(given):
        text = item if isinstance(item, str) else checked_ids(f"{name}[{i}]", item)
        if not 0 < len(text) <= longest:
            raise ConfigError(f"{name}[{i}] must have 1 to {longest} characters or tokens, not {len(text)}")
        if isinstance(text, str) and not is_unicode(text):
            raise ConfigError(f"{name}[{i}] must be Unicode, which halves of surrogate pairs are not: {text!r:.60}")
        checked.append(text)
    if len(checked) > most:
        raise ConfigError(f"{name} must have at most {most} items, not {len(checked)}")
    return tuple(checked)


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplerConfig` as keywords."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    repetition_penalty_window: int
    seed: int | None
    grammar: str | None
    json_schema: JsonSchema | None
    regex: str | None
    choices: Sequence[str] | None
    typical_p: float
    top_a: float
    eta_cutoff: float
    epsilon_cutoff: float
    top_n_sigma: float
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
    logit_bias: Mapping[int, float] | None
    banned_tokens: Iterable[int]
    schema_mode: SchemaMode
    allowed_token_ids: Iterable[int] | None
    bad_words: Iterable[str | Iterable[int]]
    min_tokens: int
