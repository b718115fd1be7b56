"""Checks of keyword values: each function raises GrammarError with keyword and place for a value of a wrong type."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema.literals import TYPES, Literal, fraction, refusal

__all__ = ["check_demands", "counted", "finite", "flagged", "listed", "mapped", "names", "type_mask"]

MAX_DIGITS = 400
MAX_DEMANDS = 20_000  # on values, each of which takes a rule


def check_demands(n: int) -> None:
    """Raises GrammarError for more demands on values than a schema may lead to."""
    if n > MAX_DEMANDS:
        raise GrammarError(f"the schema leads to more than {MAX_DEMANDS} different demands on values")


def listed(literal: Literal, keyword: str) -> list[Any]:
    value = literal.schema[keyword]
    if not isinstance(value, list):
        raise refusal(literal.path, keyword, f"its value must be a list, not {_short(value)}")
    return value


def names(literal: Literal, keyword: str) -> list[str]:
    """A list of property names."""
    value = listed(literal, keyword)
    if not all(isinstance(name, str) for name in value):
        raise refusal(literal.path, keyword, f"its items must be str: {_short(value)}")
    return value


def mapped(literal: Literal, keyword: str) -> dict[str, Any]:
    value = literal.schema[keyword]
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise refusal(literal.path, keyword, f"its value must be an object, not {_short(value)}")
    return value


def counted(literal: Literal, keyword: str) -> int:
    """A count; 2.0 is valid too."""
    value = literal.schema[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise refusal(literal.path, keyword, f"its value must be a count, not {_short(value)}")
    if not (isinstance(value, int) or (math.isfinite(value) and value == int(value))) or value < 0:
        raise refusal(literal.path, keyword, f"its value must be a count, not {_short(value)}")
    return int(value)


def flagged(literal: Literal, keyword: str) -> bool:
    value = literal.schema[keyword]
    if not isinstance(value, bool):
        raise refusal(literal.path, keyword, f"its value must be true or false, not {_short(value)}")
    return value


def finite(literal: Literal, keyword: str, value: Any) -> Fraction:
    """A number exactly as written."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise refusal(literal.path, keyword, f"expected a number, not {_short(value)}")
    if not isinstance(value, int) and not math.isfinite(value):
        raise refusal(literal.path, keyword, f"{value} is no number of JSON")
    if isinstance(value, int) and value.bit_length() > 3 * MAX_DIGITS:
        raise refusal(literal.path, keyword, f"numbers have at most {MAX_DIGITS} digits")
    return fraction(value)


def type_mask(literal: Literal) -> tuple[int, bool]:
    """The types in `type`, and whether numbers must be integers."""
    value = literal.schema["type"]
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list) or not all(isinstance(k, str) and k in TYPES for k in kinds):
        raise refusal(literal.path, "type", f"{_short(value)} is none of {', '.join(TYPES)}")
    mask = 0
    for kind in kinds:
        mask |= TYPES[kind]
    return mask, "integer" in kinds and "number" not in kinds


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else text[:57] + "..."
