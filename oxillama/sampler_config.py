"""Sampling settings: frozen dataclasses that check themselves."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from oxillama._util.checks import MAX_CONTEXT, check_float, check_int, is_unicode
from oxillama._util.json_values import dumped, loads_unique
from oxillama._util.settings import check_fields, setting, settings, settings_of
from oxillama._util.text_files import without_mark
from oxillama.errors import ConfigError

__all__ = [
    "CONSTRAINTS",
    "SCHEMA_MODES",
    "SHAPING",
    "Biases",
    "JsonSchema",
    "SamplerConfig",
    "SchemaMode",
    "Texts",
    "checked_ids",
    "fields_of",
    "idle_values",
]

JsonSchema = Mapping[str, Any] | bool | str
SchemaMode = Literal["generate", "full"]
SCHEMA_MODES = ("generate", "full")


def _grammar(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be GBNF as a str or None, not {value!r:.60}")
    return value


def _regex(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a pattern as a str or None, not {value!r:.60}")
    return value


def _choices(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be a list of texts or None, not {value!r:.60}")
    texts = tuple(value)
    if not texts:
        raise ConfigError(f"{name} must hold at least one text, not an empty list")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(f"{name}[{i}] must be a str, not {text!r:.60}")
    return texts


def _json_schema(name: str, value: Any) -> str:
    """The schema as JSON text: its order counts, and it can't be changed later."""
    try:
        if isinstance(value, str):
            text = without_mark(value)
            value = loads_unique(text)
        else:
            text = dumped(value, allow_nan=False)
            _check_keys(value)
    except RecursionError:
        raise ConfigError(f"{name} nests too deeply") from None
    except (TypeError, ValueError) as error:
        remedy = f"; give {value.__name__}.model_json_schema()" if hasattr(value, "model_json_schema") else ""
        raise ConfigError(f"{name} must be a schema as a dict, a bool or JSON text: {error}{remedy}") from None
    if not isinstance(value, Mapping | bool):
        raise ConfigError(f"{name} must be an object, true or false, not {text:.60}")
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


def checked_ids(name: str, ids: Any) -> tuple[int, ...]:
    """`ids` as a tuple of token ids. Raises ConfigError, which names the first that is none."""
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise ConfigError(f"{name} must be a list of token ids, not {ids!r}")
    return tuple(check_int(f"{name}[{i}]", token, 0, MAX_TOKEN) for i, token in enumerate(ids))


def _checked_biases(name: str, biases: Any) -> Biases:
    if not isinstance(biases, Mapping):
        raise ConfigError(f"{name} must be a mapping of token ids to numbers or None, not {biases!r}")
    checked = {}
    for token, bias in biases.items():
        token = check_int(f"{name}'s token", token, 0, MAX_TOKEN)
        banned = isinstance(bias, float) and bias == -math.inf
        checked[token] = bias if banned else check_float(f"{name}[{token}]", bias, -1e30, 1e30)
    return Biases(checked)


def _checked_texts(name: str, given: Any, most: int, longest: int) -> Texts:
    """Checks at most `most` strings or lists of token ids, each of 1 to `longest` characters or tokens."""
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


def _breakers(name: str, given: Any) -> Texts:
    return _checked_texts(name, given, MAX_BREAKERS, MAX_BREAKER)


def _bad_words(name: str, given: Any) -> Texts:
    return _checked_texts(name, given, MAX_WORDS, MAX_WORD)


def _allowed(name: str, ids: Any) -> tuple[int, ...]:
    checked = checked_ids(name, ids)
    if not checked:
        raise ConfigError(f"{name} must hold at least one token id, or be None to allow all")
    return checked


@settings()
@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """Settings of sampling. Every field is a keyword of `generate`, `stream` and `chat`.

    A call that gives no `sampler` takes the fields that it doesn't give from `Engine.sampling_defaults`: those that the
    model's file recommends, and else the ones here. With temperature=0 in the call, its penalties are those that the
    call gives, and else none: it is the likeliest token. A SamplerConfig given as `sampler` counts as a whole.

    The stages run in this order: biases and bans, penalties, DRY, top_n_sigma, what the text must follow, mirostat or
    the cuts (top_k, typical_p, top_p, min_p, top_a, eta_cutoff, epsilon_cutoff, xtc) and the temperature. Those that
    cut keep at least one token.

    {fields}

    Raises ConfigError, which names the field, its value and its range.
    """

    temperature: float = setting(
        0.7,
        "0 takes the likeliest token (after the grammar); higher is more random.",
        brief="0 takes the likeliest token",
        idle=1.0,
    )
    top_k: int = setting(
        40,
        "keep the k likeliest tokens; 0 keeps all.",
        most=MAX_TOKEN,
        brief="the k likeliest tokens; 0 keeps all",
        idle=0,
    )
    top_p: float = setting(
        0.9,
        "keep the fewest likeliest tokens whose probabilities add up to p; 1 keeps all.",
        most=1,
        brief="the fewest likeliest tokens with this probability together",
        idle=1.0,
    )
    min_p: float = setting(
        0.0,
        "keep tokens at least p times as likely as the likeliest; 0 keeps all.",
        most=1,
        brief="tokens this likely, relative to the likeliest",
        idle=0.0,
    )
    repetition_penalty: float = setting(
        1.0,
        "divides the positive logits of recent tokens and multiplies their other logits; 1 is none.",
        above=True,
        brief="divides the logits of recent tokens; 1 is none",
        group="penalties",
        idle=1.0,
    )
    repetition_penalty_window: int = setting(
        64,
        "how many recent tokens this and the next two penalties see, those of the prompt included; 0 is none.",
        most=MAX_CONTEXT,
        brief="tokens that penalties look back",
        group="penalties",
    )
    seed: int | None = setting(
        None,
        "the same seed gives the same text; None is random.",
        most=MAX_SEED,
        brief="the same seed gives the same text",
    )
    grammar: str | None = setting(
        None,
        "GBNF that the text must follow; it ends where the grammar may. None allows any text. One of grammar, "
        "json_schema, regex and choices can be given.",
        check=_grammar,
        brief="GBNF that it follows",
    )
    json_schema: JsonSchema | None = setting(
        None,
        "a schema (a dict, a bool or JSON text) that the text, as JSON, must follow. It is kept as JSON text.",
        check=_json_schema,
        brief="a schema that the text, as JSON, follows",
        group="grammar",
    )
    regex: str | None = setting(
        None,
        "a pattern that the whole text must match.",
        check=_regex,
        brief="a pattern that the whole text matches",
        group="grammar",
    )
    choices: Sequence[str] | None = setting(
        None,
        "texts of which it must be one.",
        check=_choices,
        brief="texts of which it is one",
        group="grammar",
    )
    typical_p: float = setting(
        1.0,
        "keep the tokens whose surprise is nearest to the expected one, with probability p together; 1 keeps all.",
        most=1,
        brief="the most typical tokens with this probability together",
        idle=1.0,
    )
    top_a: float = setting(
        0.0,
        "keep tokens with at least a times the square of the highest probability; 0 keeps all.",
        most=1,
        brief="tokens with this share of the squared highest probability",
        idle=0.0,
    )
    eta_cutoff: float = setting(
        0.0,
        "keep tokens with a probability of min(eta, sqrt(eta) * exp(-entropy)); 0 keeps all.",
        most=1,
        brief="tokens this probable, or less where the entropy is high",
        idle=0.0,
    )
    epsilon_cutoff: float = setting(
        0.0,
        "keep tokens with this probability; 0 keeps all.",
        most=1,
        brief="tokens this probable",
        idle=0.0,
    )
    top_n_sigma: float = setting(
        0.0,
        "keep logits that are at most so many standard deviations below the highest; 0 keeps all.",
        brief="logits this many standard deviations below the highest",
        idle=0.0,
    )
    frequency_penalty: float = setting(
        0.0,
        "taken off a recent token's logit for each time that it occurs; negative ones make it likelier.",
        least=-1000,
        most=1000,
        brief="taken off for each time that a token came",
        group="penalties",
        idle=0.0,
    )
    presence_penalty: float = setting(
        0.0,
        "taken off a recent token's logit once.",
        least=-1000,
        most=1000,
        brief="taken off once",
        group="penalties",
        idle=0.0,
    )
    dry_multiplier: float = setting(
        0.0,
        "a token that would lengthen a repetition of n >= dry_allowed_length tokens loses dry_multiplier * "
        "dry_base ** (n - dry_allowed_length); 0 is none. The whole text counts, or the last `dry_window` tokens.",
        brief="against repetitions of several tokens; 0 is none",
        group="dry",
        idle=0.0,
    )
    dry_base: float = setting(
        1.75,
        "base of that power.",
        least=1,
        most=1000,
        brief="how its penalty grows with a repetition",
        group="dry",
    )
    dry_allowed_length: int = setting(
        2,
        "tokens that may be repeated without it.",
        least=1,
        most=MAX_CONTEXT,
        brief="tokens that may be repeated",
        group="dry",
    )
    dry_window: int | None = setting(
        None,
        "tokens that DRY looks back; None: the whole text.",
        least=1,
        most=MAX_CONTEXT,
        brief="tokens of the text that it looks at; default all",
        group="dry",
    )
    dry_sequence_breakers: Iterable[str | Iterable[int]] = setting(
        ("\n", ":", '"', "*"),
        "strings (or lists of token ids) that no repetition reaches across.",
        check=_breakers,
        brief="strings that no repetition reaches across; default newline, colon, quote and asterisk",
        group="dry",
        ids=True,
    )
    xtc_probability: float = setting(
        0.0,
        "how often all tokens with a probability of xtc_threshold go, except the least likely of them.",
        most=1,
        brief="how often the likeliest tokens are left out",
        group="xtc",
        idle=0.0,
    )
    xtc_threshold: float = setting(
        0.1, "probability from which they go.", most=1, brief="how probable these are", group="xtc"
    )
    mirostat: int = setting(
        0,
        "1 or 2 (its version) steers to a surprise of `mirostat_tau` bits a token, in steps of `mirostat_eta`, and "
        "takes the place of the cuts, from top_k to xtc; 0 is off.",
        most=2,
        brief="version; 0 is off",
        idle=0,
    )
    mirostat_tau: float = setting(
        5.0,
        "surprise of mirostat, in bits a token.",
        most=1000,
        brief="surprise to steer to, in bits",
        group="mirostat",
    )
    mirostat_eta: float = setting(0.1, "step of mirostat.", most=10, brief="how quickly", group="mirostat")
    dynatemp_range: float = setting(
        0.0,
        "the temperature goes from this much below to this much above, with the entropy (normalised) to the "
        "power of `dynatemp_exponent`; 0 is off.",
        brief="the temperature follows the entropy this far up and down",
        group="dynatemp",
    )
    dynatemp_exponent: float = setting(1.0, "that power.", brief="how it does", group="dynatemp")
    logit_bias: Mapping[int, float] | None = setting(
        None,
        "token id -> what is added to its logit; minus infinity bans it.",
        check=_checked_biases,
        brief="added to a token's logit",
        ids=True,
    )
    banned_tokens: Iterable[int] = setting(
        (),
        "ids of tokens that never come.",
        check=checked_ids,
        brief="ids of tokens that never come",
        group="logit_bias",
        ids=True,
    )
    schema_mode: SchemaMode = setting(
        "generate",
        "\"generate\" holds the text to what programs read easily of a schema's instances (and of a tool's "
        "arguments): integers are at most 19 digits without point or exponent, other numbers have about 17 digits, "
        "values that the schema lists are spelled as `json.dumps(..., ensure_ascii=False)` does, objects have no "
        'properties but those that the schema names, unless `additionalProperties` says which. "full" allows all '
        "instances.",
        choices=SCHEMA_MODES,
        brief="`generate`, or `full` for all instances of a schema",
        group="grammar",
    )
    allowed_token_ids: Iterable[int] | None = setting(
        None,
        "ids of the only tokens that may come, the end's too; None allows all.",
        check=_allowed,
        brief="the only tokens that may come",
        group="masks",
        ids=True,
    )
    bad_words: Iterable[str | Iterable[int]] = setting(
        (),
        "strings (or lists of token ids) that the text doesn't have: where the tokens of one stand but for the "
        "last, that can't come. A string counts as its tokens alone and as those after a space; other tokens may "
        "still spell it. What the prompt ends with doesn't count.",
        check=_bad_words,
        brief="words that never come",
        group="masks",
        ids=True,
    )
    min_tokens: int = setting(
        0,
        "tokens that a text has at least: before, no token can end it, stop strings in it don't count and no "
        "stopping criterion is asked.",
        most=MAX_CONTEXT,
        brief="tokens before the text may end",
        group="masks",
    )

    def __post_init__(self) -> None:
        named = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(named) > 1:
            known = ", ".join(CONSTRAINTS)
            raise ConfigError(f"{named[0]} and {named[1]} are both given: a text can follow one of {known}")
        check_fields(self)
        if self.mirostat and not self.temperature:
            raise ConfigError("temperature must be above 0 with mirostat, which draws at random, not 0")

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
        return next((one.name for one in _MASKING if getattr(self, one.name) != one.default), None)

    def check_ids(self, n_vocab: int) -> None:
        """Raises ConfigError if a field has tokens that a vocabulary doesn't have."""
        for name in _WITH_IDS:
            highest = _highest_id(getattr(self, name))
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


def _highest_id(given: Iterable[Any] | None) -> int:
    """The highest token id of a field of ids, or of one of texts, of which some are lists of ids; 0 without any."""
    items = given or ()
    if isinstance(next(iter(items), 0), int):
        return max(items, default=0)
    return max((max(item) for item in items if not isinstance(item, str)), default=0)


def fields_of(*groups: str) -> tuple[str, ...]:
    """The names of the fields of `SamplerConfig` that belong to stages of sampling, in the order of the stages."""
    known = settings_of(SamplerConfig).values()
    return tuple(one.name for group in groups for one in known if one.group == group)


def idle_values(*groups: str) -> dict[str, float]:
    """Fields and values with which these stages of sampling do nothing."""
    known = settings_of(SamplerConfig)
    return {name: idle for name in fields_of(*groups) if (idle := known[name].idle) is not None}


# What a text can follow: one of these fields.
CONSTRAINTS = tuple(name for name in fields_of("grammar") if settings_of(SamplerConfig)[name].default is None)
# Fields that say what may come, and not how to draw.
SHAPING = fields_of("grammar", "logit_bias", "masks")
_MASKING = [settings_of(SamplerConfig)[name] for name in fields_of("masks")]
_WITH_IDS = [one.name for one in settings_of(SamplerConfig).values() if one.ids]
