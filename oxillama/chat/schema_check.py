"""Check of a tool's schema: it must be valid, with only keywords that can be checked."""

from collections.abc import Mapping
from typing import Any

from oxillama.chat.arguments import CHECKS, MAX_DEPTH, TYPES, resolve, searcher
from oxillama.errors import ConfigError, GrammarError

__all__ = ["check_schema"]

DRAFTS = tuple(f"https://json-schema.org/draft/{d}/schema" for d in ("2020-12", "2019-09")) + tuple(
    f"http://json-schema.org/draft-0{d}/schema" for d in (7, 6)
)
# Keywords without effect on validity; `format` is one in draft 2020-12.
ANNOTATIONS = frozenset(
    (
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "contentEncoding",
        "contentMediaType",
    )
)


def check_schema(schema: Any, name: str = "parameters") -> None:
    """Raises ConfigError for a schema with keywords that can't be checked, naming the first of them."""
    todo: list[tuple[str, Any, int]] = [(name, schema, 0)]
    seen: set[int] = set()
    references: list[tuple[str, str]] = []
    while todo:
        place, item, depth = todo.pop()
        if isinstance(item, bool):
            continue
        if not isinstance(item, Mapping) or depth > MAX_DEPTH:
            raise ConfigError(f"{place} must be a schema (a dict or a bool) of at most {MAX_DEPTH} levels")
        seen.add(id(item))
        for keyword, inner in item.items():
            if keyword in ("$defs", "definitions", "properties", "patternProperties"):
                _check_value(keyword, inner, Mapping, place)
                todo += [(f"{place}.{keyword}.{key}", below, depth + 1) for key, below in inner.items()]
            elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
                _check_value(keyword, inner, list, place)
                todo += [(f"{place}.{keyword}[{i}]", below, depth + 1) for i, below in enumerate(inner)]
            elif keyword in _SUBSCHEMAS:
                todo.append((f"{place}.{keyword}", inner, depth + 1))
            elif keyword not in ANNOTATIONS and keyword not in CHECKS:
                raise ConfigError(f"{place} has the keyword {keyword!r}, which can't be checked: leave it out")
            else:
                _check_value(keyword, inner, _VALUES.get(keyword, object), place)
        _check_patterns(item, place)
        if item.get("$schema", DRAFTS[0]).rstrip("#") not in DRAFTS:
            raise ConfigError(f"{place} is in a language that isn't known: $schema {item['$schema']!r:.80}")
        if "$ref" in item:
            references.append((place, item["$ref"]))
    for place, reference in references:
        target = resolve(schema, reference)
        if not isinstance(target, bool) and id(target) not in seen:
            raise ConfigError(f"{place} has a $ref {reference!r:.60} to what is no schema")


_SUBSCHEMAS = frozenset(("items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"))
_VALUES: dict[str, Any] = {
    "required": list, "enum": list, "$ref": str, "pattern": str, "$schema": str, "dependentRequired": Mapping,
    "type": (str, list),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), int),
}  # fmt: skip


def _check_value(keyword: str, value: Any, kind: Any, place: str) -> None:
    ok = isinstance(value, kind) and not (isinstance(value, bool) and kind in (int, (int, float)))
    if keyword == "type":
        ok = ok and all(name in TYPES for name in ([value] if isinstance(value, str) else value))
    if keyword == "multipleOf":
        ok = ok and value > 0
    if not ok:
        raise ConfigError(f"{place} has {keyword} {value!r:.60}, which is none")


def _check_patterns(schema: Mapping[str, Any], place: str) -> None:
    patterns = [schema["pattern"]] if "pattern" in schema else []
    for pattern in [*patterns, *schema.get("patternProperties", ())]:
        try:
            searcher(pattern)
        except GrammarError as error:
            raise ConfigError(f"{place} has a pattern that can't be checked: {error}") from None
