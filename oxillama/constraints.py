"""What a text may be, as settings: a grammar, a pattern or a list of texts."""

from collections.abc import Iterable, Mapping
from typing import Any

from oxillama.errors import ConfigError

__all__ = ["CONSTRAINTS", "checked_constraints"]

CONSTRAINTS = ("grammar", "regex", "choices")


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


_CHECKS = {"grammar": _grammar, "regex": _regex, "choices": _choices}
