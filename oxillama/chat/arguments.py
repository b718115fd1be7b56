"""Validation of arguments against a tool's schema: the keywords of JSON Schema (draft 2020-12), on Python values.

A grammar constrains a model's text to the schema; this validates values, in any order of keys, and reports faults.
"""

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import unquote

from oxillama.errors import ConfigError
from oxillama.grammar.matcher import Grammar

__all__ = ["CHECKS", "MAX_DEPTH", "TYPES", "Schema", "faults", "resolve", "searcher"]

Schema = Mapping[str, Any] | bool
Check = Callable[["_At", Any, Any], Iterator[str]]

MAX_DEPTH = 100
MAX_STEPS = 100_000


def faults(schema: Schema, value: Any) -> Iterator[str]:
    """Faults of a JSON value, each with its place; none if it fits the schema.

    The schema must have passed `check_schema`.
    """
    try:
        yield from _Root(schema).faults(schema, value, "arguments", 0)
    except _TooMuchError as error:
        yield str(error)


class _TooMuchError(Exception):
    """Too many steps. An error, not a fault, since `not` would take a fault for a fit."""


@lru_cache(maxsize=256)
def searcher(pattern: str) -> Grammar:
    """Texts in which an ECMAScript pattern is found; takes linear time, whatever the pattern."""
    Grammar.from_regex(pattern)  # checks that the pattern alone is valid: it can't close the group around it then
    return Grammar.from_regex(rf"[\s\S]*(?:{pattern})[\s\S]*")


class _Root:
    """The root schema of references, and the number of steps left."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.left = MAX_STEPS

    def faults(self, schema: Schema, value: Any, place: str, depth: int) -> Iterator[str]:
        self.left -= 1
        if depth > MAX_DEPTH or not self.left:
            raise _TooMuchError(f"{place[:100]} can't be checked: that takes too many steps, or too deep ones")
        if isinstance(schema, bool):
            if not schema:
                yield f"{place} must not be there"
            return
        at = _At(self, schema, place, depth)
        for keyword, wanted in schema.items():
            if keyword in CHECKS:
                yield from CHECKS[keyword](at, wanted, value)


@dataclass(frozen=True, slots=True)
class _At:
    """A place in a value: its name, its depth, and the schema for it."""

    root: _Root
    schema: Mapping[str, Any]
    place: str
    depth: int

    def inside(self, schema: Schema, value: Any, suffix: str = "") -> Iterator[str]:
        """Faults of a part of the value, or of the value by another schema."""
        return self.root.faults(schema, value, self.place + suffix, self.depth + 1)

    def fits(self, schema: Schema, value: Any) -> bool:
        return next(self.inside(schema, value), None) is None


def resolve(root: Schema, reference: str) -> Schema:
    """The schema that a JSON pointer names. Raises ConfigError if there is none; none is fetched."""
    found: Any = root
    try:
        if reference != "#" and not reference.startswith("#/"):
            raise KeyError
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            found = found[int(key)] if isinstance(found, list) else found[key]
    except (KeyError, IndexError, ValueError, TypeError):
        raise ConfigError(f"$ref {reference!r:.60} leads to nothing in the schema") from None
    if not isinstance(found, Mapping | bool):
        raise ConfigError(f"$ref {reference!r:.60} leads to what is no schema")
    return found


# ---- values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "number": _is_number,
    "integer": lambda v: _is_number(v) and v == int(v),
}


def _key(value: Any) -> Any:
    """Key that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return "object", frozenset((key, _key(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_key, value))
    return "boolean" if isinstance(value, bool) else "", value


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]


# ---- keywords, each a function of the place, the keyword's value, and the value to check


def _type(at: _At, wanted: Any, value: Any) -> Iterator[str]:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not any(TYPES[name](value) for name in names):
        yield f"{at.place} must be of type {' or '.join(names)}, not {_shown(value)}"


def _enum(at: _At, wanted: Any, value: Any) -> Iterator[str]:
    if _key(value) not in map(_key, wanted):
        yield f"{at.place} must be one of {', '.join(map(_shown, wanted))}, not {_shown(value)}"


def _const(at: _At, wanted: Any, value: Any) -> Iterator[str]:
    return _enum(at, [wanted], value)


def _bound(words: str, holds: Callable[[Any, Any], bool], size: Callable[[Any], Any]) -> Check:
    def check(at: _At, wanted: Any, value: Any) -> Iterator[str]:
        found = size(value)
        if found is not None and not holds(found, wanted):
            yield f"{at.place} must {words} {_shown(wanted)}, not {_shown(found)}"

    return check


def _number(value: Any) -> Any:
    return value if _is_number(value) else None


def _length(kind: type[str | list[Any] | dict[str, Any]]) -> Callable[[Any], int | None]:
    return lambda value: len(value) if isinstance(value, kind) else None


def _divides(value: Any, step: Any) -> bool:
    """Whether step divides value, both as the decimals that are written, not as the floats nearest to them."""
    return Fraction(str(value)) % Fraction(str(step)) == 0


def _pattern(at: _At, wanted: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and not searcher(wanted).accepts(value):
        yield f"{at.place} must match {wanted}, not {_shown(value)}"


def _required(at: _At, wanted: list[str], value: Any) -> Iterator[str]:
    missing = [key for key in wanted if key not in value] if isinstance(value, dict) else []
    if missing:
        yield f"{at.place} must have {', '.join(map(repr, missing))}"


def _dependent_required(at: _At, wanted: Mapping[str, list[str]], value: Any) -> Iterator[str]:
    for key, others in wanted.items():
        if isinstance(value, dict) and key in value:
            yield from _required(at, others, value)


def _properties(at: _At, wanted: Mapping[str, Schema], value: Any) -> Iterator[str]:
    for key, schema in wanted.items():
        if isinstance(value, dict) and key in value:
            yield from at.inside(schema, value[key], f".{key}")


def _pattern_properties(at: _At, wanted: Mapping[str, Schema], value: Any) -> Iterator[str]:
    for key in value if isinstance(value, dict) else ():
        for pattern, schema in wanted.items():
            if searcher(pattern).accepts(key):
                yield from at.inside(schema, value[key], f".{key}")


def _additional_properties(at: _At, wanted: Schema, value: Any) -> Iterator[str]:
    known, patterns = at.schema.get("properties", {}), at.schema.get("patternProperties", {})
    for key in value if isinstance(value, dict) else ():
        if key not in known and not any(searcher(pattern).accepts(key) for pattern in patterns):
            yield from at.inside(wanted, value[key], f".{key}")


def _property_names(at: _At, wanted: Schema, value: Any) -> Iterator[str]:
    for key in value if isinstance(value, dict) else ():
        yield from at.inside(wanted, key, f" has the key {_shown(key)}, which")


def _prefix_items(at: _At, wanted: list[Schema], value: Any) -> Iterator[str]:
    for i, schema in enumerate(wanted):
        if isinstance(value, list) and i < len(value):
            yield from at.inside(schema, value[i], f"[{i}]")


def _items(at: _At, wanted: Schema, value: Any) -> Iterator[str]:
    for i in range(len(at.schema.get("prefixItems", ())), len(value) if isinstance(value, list) else 0):
        yield from at.inside(wanted, value[i], f"[{i}]")


def _unique(at: _At, wanted: bool, value: Any) -> Iterator[str]:
    if wanted and isinstance(value, list) and len(set(map(_key, value))) < len(value):
        yield f"{at.place} must not have equal items"


def _contains(at: _At, wanted: Schema, value: Any) -> Iterator[str]:
    if isinstance(value, list) and not any(at.fits(wanted, item) for item in value):
        yield f"{at.place} has no item of the kind that it must contain"


def _all_of(at: _At, wanted: list[Schema], value: Any) -> Iterator[str]:
    for schema in wanted:
        yield from at.inside(schema, value)


def _any_of(at: _At, wanted: list[Schema], value: Any) -> Iterator[str]:
    found = [list(islice(at.inside(schema, value), 1)) for schema in wanted]
    if all(found):
        yield f"{at.place} fits none of the alternatives: " + "; ".join(fault for (fault,) in found)[:400]


def _one_of(at: _At, wanted: list[Schema], value: Any) -> Iterator[str]:
    n = sum(at.fits(schema, value) for schema in wanted)
    if n != 1:
        yield f"{at.place} must fit exactly one of {len(wanted)} alternatives, not {n}"


def _not(at: _At, wanted: Schema, value: Any) -> Iterator[str]:
    if at.fits(wanted, value):
        yield f"{at.place} must not be what it is: {_shown(value)}"


def _if(at: _At, wanted: Schema, value: Any) -> Iterator[str]:
    yield from at.inside(at.schema.get("then" if at.fits(wanted, value) else "else", True), value)


def _ref(at: _At, wanted: str, value: Any) -> Iterator[str]:
    yield from at.inside(resolve(at.root.schema, wanted), value)


CHECKS: dict[str, Check] = {
    "type": _type, "enum": _enum, "const": _const, "$ref": _ref, "pattern": _pattern,
    "minimum": _bound("be at least", operator.ge, _number), "maximum": _bound("be at most", operator.le, _number),
    "exclusiveMinimum": _bound("be above", operator.gt, _number),
    "exclusiveMaximum": _bound("be below", operator.lt, _number),
    "multipleOf": _bound("be a multiple of", _divides, _number),
    "minLength": _bound("have a length of at least", operator.ge, _length(str)),
    "maxLength": _bound("have a length of at most", operator.le, _length(str)),
    "minItems": _bound("have items, at least", operator.ge, _length(list)),
    "maxItems": _bound("have items, at most", operator.le, _length(list)),
    "minProperties": _bound("have keys, at least", operator.ge, _length(dict)),
    "maxProperties": _bound("have keys, at most", operator.le, _length(dict)),
    "required": _required, "dependentRequired": _dependent_required, "properties": _properties,
    "patternProperties": _pattern_properties, "additionalProperties": _additional_properties,
    "propertyNames": _property_names, "prefixItems": _prefix_items, "items": _items, "uniqueItems": _unique,
    "contains": _contains, "allOf": _all_of, "anyOf": _any_of, "oneOf": _one_of, "not": _not, "if": _if,
    "then": lambda at, wanted, value: iter(()), "else": lambda at, wanted, value: iter(()),
}  # fmt: skip
