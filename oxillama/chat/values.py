"""Values of arguments that are written as plain text: whether a text is meant as it is, or as JSON."""

import ast
import json
from collections.abc import Mapping
from typing import Any, Literal

from oxillama.chat.calls import read_json

__all__ = ["Kind", "Schema", "escaped", "kind_of", "place_of", "property_of", "schema_properties", "value_json"]

Schema = Mapping[str, Any] | bool
Kind = Literal["text", "json", "any"]
MAX_DEPTH = 16
MAX_LITERAL = 1 << 16


def property_of(schema: Any, key: str, root: Any = None) -> Any:
    """The schema of one property of an object's schema; None if it says nothing."""
    schema = resolved(schema, schema if root is None else root)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def resolved(schema: Any, root: Any) -> Any:
    """A schema, or what its local `$ref` leads to."""
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        schema = root
        for step in reference[1:].split("/")[1:]:
            schema = schema.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return schema


def schema_properties(schema: Any, root: Any) -> list[tuple[str, Any, bool]]:
    """(name, schema, whether it must be there) of an object's properties, in their order."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping):
        return []
    properties = schema.get("properties")
    listed = dict(properties) if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return [
        (name, listed.get(name, True), name in needed) for name in [*listed, *(n for n in needed if n not in listed)]
    ]


def place_of(schema: Any, root: Any) -> str | None:
    """Place where a schema first stands in the one that it is a part of, as a JSON pointer; None if it isn't there."""
    from oxillama.grammar.json_schema.literals import Path, pointer  # twenty modules, which only errors need here

    left: list[tuple[Any, Path]] = [(root, None)]
    while left:
        inner, path = left.pop()
        if inner is schema:
            return pointer(path)
        steps = inner.items() if isinstance(inner, Mapping) else enumerate(inner) if isinstance(inner, list) else ()
        left += reversed([(one, (path, step)) for step, one in steps])
    return None


def kind_of(schema: Any, root: Any = None) -> Kind:
    """ "text" if a schema has only strings, "json" if it has none, "any" otherwise, or if it says nothing."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping):
        return "any"
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return _kind([isinstance(value, str) for value in values])
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return "text" if kinds == "string" else "json"
    if isinstance(kinds, list) and kinds:
        return _kind([kind == "string" for kind in kinds])
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if isinstance(options, list) and options:
            found = {kind_of(option, root) for option in options}
            return found.pop() if len(found) == 1 else "any"
    return "any"


def _kind(texts: list[bool]) -> Kind:
    return "text" if texts and all(texts) else "any" if any(texts) or not texts else "json"


def value_json(text: str, kind: Kind) -> str:
    """The JSON of a value that is written without quotes."""
    if kind != "text":
        bare = text.strip()
        try:
            read_json(bare)
        except ValueError:
            if kind == "json" and (literal := _python_json(bare)) is not None:
                return literal
        else:
            return bare
    return json.dumps(text, ensure_ascii=False)


def _python_json(text: str) -> str | None:
    """The JSON of a literal of Python, which templates write that print values as they are; None for other texts."""
    if len(text) > MAX_LITERAL:
        return None
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def escaped(text: str) -> str:
    """A text as it stands in a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
