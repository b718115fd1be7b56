"""Argument checks: the error for a wrong value names the argument and its range."""

import functools
import math
import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from oxillama.errors import ConfigError

__all__ = [
    "MAX_CONTEXT",
    "are_ints",
    "check_bool",
    "check_choice",
    "check_flag",
    "check_float",
    "check_int",
    "check_keywords",
    "check_type",
    "given_of",
    "is_unicode",
    "misspelt",
    "nearest",
    "overlaid",
    "suggests_fields",
]

MAX_CONTEXT = 1 << 24  # tokens
TURN = 1 << 14  # items that are looked at before other threads may run

T = TypeVar("T")
C = TypeVar("C", bound=type)


def are_ints(values: list[Any], minimum: int, maximum: int) -> bool:
    """Whether a list has nothing but integers in [minimum, maximum], such as thousands of token ids; False without any.

    Other threads run meanwhile, however many there are.
    """
    for start in range(0, len(values), TURN):
        part = values[start : start + TURN]
        if {*map(type, part)} != {int} or min(part) < minimum or max(part) > maximum:
            return False
    return bool(values)


def check_int(name: str, value: Any, minimum: int, maximum: int) -> int:
    """`value` as an int; ConfigError unless it is an integer in [minimum, maximum]. True and 1.0 are no integers."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be an integer from {minimum} to {maximum}, not {value!r}") from None
    if not minimum <= number <= maximum:
        raise ConfigError(f"{name} must be from {minimum} to {maximum}, not {number}")
    return number


def check_float(name: str, value: Any, minimum: float, maximum: float = math.inf, *, above: bool = False) -> float:
    """`value` as a float; ConfigError unless it is a finite number in [minimum, maximum] (`above`: > minimum)."""
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} must be {_bounds(minimum, maximum, above)}, not {value!r}") from None
    if not minimum <= number <= maximum or math.isinf(number) or (above and number == minimum):
        raise ConfigError(f"{name} must be {_bounds(minimum, maximum, above)}, not {number:g}")
    return number


def _bounds(minimum: float, maximum: float, above: bool) -> str:
    if maximum < math.inf:
        return f"a number from {minimum:g} to {maximum:g}"
    return f"a finite number {'above' if above else 'of at least'} {minimum:g}"


def check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """`value`, and False for None, which stands for a flag that is not given; ConfigError unless it is a bool."""
    return value is not None and check_bool(name, value)


def given_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given: None stands for one that is not."""
    return {name: value for name, value in options.items() if value is not None}


def overlaid(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in place of defaults, but for those that are not given (None)."""
    return {**defaults, **{name: value for name, value in options.items() if value is not None or name not in defaults}}


def check_type(name: str, value: T, *types: type) -> T:
    """`value`; ConfigError unless it is of one of these types."""
    if not isinstance(value, types):
        names = " or ".join(t.__name__ for t in types)
        raise ConfigError(f"{name} must be of type {names}, not {type(value).__name__}")
    return value


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


# Other packages' names for arguments that have another name here, or that difflib matches wrongly: ours -> theirs.
_THEIRS = {
    "json_schema": (
        "response_format",
        "format",
        "guided_json",
        "json_mode",
    ),
    "regex": ("guided_regex",),
    "context_size": (
        "n_ctx",
        "num_ctx",
        "max_model_len",
    ),
    "prefill_chunk_size": (
        "n_batch",
        "n_ubatch",
    ),
    "kv_type": (
        "cache_type_k",
        "cache_type_v",
    ),
    "max_tokens": (
        "n_predict",
        "num_predict",
    ),
    "n": ("num_return_sequences",),
    "seed": ("random_seed",),
    "sampler": ("sampling_params",),
    "temperature": ("do_sample",),
    "repetition_penalty_window": ("repeat_last_n",),
    "mirostat": ("mirostat_mode",),
    "mirostat_eta": ("mirostat_lr",),
    "mirostat_tau": ("mirostat_ent",),
    "bad_words": ("bad_words_ids",),
    "banned_tokens": ("suppress_tokens",),
    "stop_token_ids": ("eos_token_id",),
    "min_tokens": ("min_new_tokens",),
    "include_stop": ("include_stop_str_in_output",),
    "deadline": (
        "timeout",
        "time_limit",
        "max_time",
    ),
    "on_token": (
        "callback",
        "streamer",
    ),
    "draft": ("assistant_model",),
    "num_speculative": (
        "num_draft_tokens",
        "prompt_lookup_num_tokens",
    ),
    "tools": ("functions",),
    "tool_choice": ("function_call",),
    "logprobs": ("top_logprobs",),
}
_ELSEWHERE = {its: ours for ours, theirs in _THEIRS.items() for its in theirs}
# Names of fields elsewhere that are near those of other things.
_APART = ("conversation_id", "models", "seed", "speed")
# Keywords of other packages for which an engine has a method.
_METHODS = {
    "stream": "stream()",
    "suffix": "infill(prefix, suffix)",
    "num_beams": "beam_search()",
    "use_beam_search": "beam_search()",
    "best_of": "beam_search(), or n= and logprobs=",
}


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that a misspelt, shortened or foreign one most likely means, None if none is similar."""
    import difflib

    if _ELSEWHERE.get(name) in known:
        return _ELSEWHERE[name]
    similar = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    if not similar and len(name) > 2:
        similar = [other for other in known if other.startswith(name) or name.startswith(f"{other}_")]
    similar = similar or difflib.get_close_matches(name, known, n=1)
    return similar[0] if similar else None


def misspelt(name: str, known: Collection[str]) -> str | None:
    """The known name that a name is meant for beyond doubt: written in other letters or with a slip, or that of another
    package; None for a name of its own."""
    import difflib

    if _ELSEWHERE.get(name) in known:
        return _ELSEWHERE[name]
    plain = name.replace("_", "").lower()
    for other in known:
        if other.replace("_", "").lower() == plain:
            return other
    similar = [] if name in _APART else difflib.get_close_matches(name, known, n=1, cutoff=0.85)
    return similar[0] if similar else None


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: halves of surrogate pairs can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_keywords(
    function: str, given: Iterable[str], known: Collection[str], foreign: Collection[str] = (), remedy: str = ""
) -> None:
    """TypeError, as Python raises it, for a keyword that `function` doesn't have, with the nearest that it has.

    foreign: keywords of others, for which `remedy` says what to do.
    """
    for name in given:
        if name not in known:
            if name not in foreign:
                remedy = _remedy(name, known)
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; {remedy}")


def _remedy(name: str, known: Collection[str]) -> str:
    if name in _METHODS and "max_tokens" in known:
        return f"there is {_METHODS[name]} for that"
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"it takes {', '.join(known)}"


def suggests_fields(settings: C) -> C:
    """A dataclass whose constructor raises the TypeError of `check_keywords` for an unknown field."""
    made: Any = settings
    construct = made.__init__
    known = dict.fromkeys(field.name for field in fields(settings))

    @functools.wraps(construct)
    def checked(self: Any, *values: Any, **given: Any) -> None:
        if not given.keys() <= known.keys():
            check_keywords(made.__name__, given, known)
        construct(self, *values, **given)

    made.__init__ = checked
    return settings
