"""Values that callers give, checked: a wrong one is named, with its range."""

import functools
import math
import operator
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any, TypeVar

from oxillama.errors import ConfigError

__all__ = [
    "MAX_CONTEXT",
    "check_bool",
    "check_choice",
    "check_float",
    "check_int",
    "check_keywords",
    "check_type",
    "is_unicode",
    "nearest",
    "suggests_fields",
]

MAX_CONTEXT = 1 << 24  # tokens

T = TypeVar("T")
C = TypeVar("C", bound=type)


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
    bounds = f"a finite number {'above' if above else 'of at least'} {minimum:g}"
    if maximum < math.inf:
        bounds = f"a number from {minimum:g} to {maximum:g}"
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} must be {bounds}, not {value!r}") from None
    if not minimum <= number <= maximum or math.isinf(number) or (above and number == minimum):
        raise ConfigError(f"{name} must be {bounds}, not {number:g}")
    return number


def check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}")
    return value


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


# Names of other packages for what has another name here, or which difflib takes for something else.
_ELSEWHERE = {
    "response_format": "json_schema",
    "n_ctx": "context_size",
    "n_batch": "prefill_chunk_size",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "functions": "tools",
    "function_call": "tool_choice",
    "top_logprobs": "logprobs",
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


def is_unicode(text: str) -> bool:
    """Whether a text has a form in UTF-8: halves of surrogate pairs have none."""
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
            near = None if name in foreign else nearest(name, known)
            if near is not None:
                remedy = f"did you mean {near!r}?"
            elif name not in foreign:
                remedy = f"it takes {', '.join(known)}"
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; {remedy}")


def suggests_fields(settings: C) -> C:
    """A dataclass whose constructor raises the TypeError of `check_keywords` for an unknown field."""
    made: Any = settings
    construct = made.__init__
    names = tuple(field.name for field in fields(settings))

    @functools.wraps(construct)
    def checked(self: Any, *values: Any, **given: Any) -> None:
        check_keywords(made.__name__, given, names)
        construct(self, *values, **given)

    made.__init__ = checked
    return settings
