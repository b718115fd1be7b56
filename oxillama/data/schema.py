"""Column types of JSON schemas: objects become structs, arrays lists; what has no one type is kept as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oxillama._util.json_values import unique_keys
from oxillama._util.text_files import without_mark
from oxillama.data.columns import FLOAT, INT, JSON, TEXT, ColumnType, Items, Scalar, Struct
from oxillama.errors import ConfigError

__all__ = ["read_schema", "type_of_schema"]

BOOL = Scalar("bool")
_TYPES = {"string": TEXT, "integer": INT, "number": FLOAT, "boolean": BOOL}
# Keywords by which one schema stands for several, or an object has properties that no list names.
_COMPOUND = ("allOf", "not", "if", "patternProperties", "prefixItems", "dependentSchemas")
NULL = {"type": "null"}


def read_schema(given: Any) -> Any:
    """A schema as `json_schema` takes it: of a pydantic class, its `model_json_schema()`.

    Raises ConfigError for text that is no JSON.
    """
    if isinstance(given, type) and hasattr(given, "model_json_schema"):
        return given.model_json_schema()
    if isinstance(given, str):
        try:
            return json.loads(without_mark(given), object_pairs_hook=unique_keys)
        except ValueError as error:
            raise ConfigError(f"json_schema must be a schema as a dict, a bool or JSON text: {error}") from None
    return given


def type_of_schema(schema: Any, *, closed: bool) -> ColumnType:
    """The type of a column of a schema's instances.

    closed: objects have no properties but those that the schema names. Objects whose properties aren't all named,
    unions, recursive parts and tuples are columns of JSON text.
    """
    return _Reader(schema, closed).read(schema, ("#",))


class _Reader:
    """Types of the parts of one schema."""

    def __init__(self, root: Any, closed: bool) -> None:
        self._root = root
        self._closed = closed

    def read(self, schema: Any, within: tuple[str, ...]) -> ColumnType:
        """`within`: references that lead to the part, which is recursive if it leads to one of them."""
        if not isinstance(schema, Mapping):
            return JSON
        if "$ref" in schema:
            ref = schema["$ref"]
            target = None if ref in within else self._target(ref)
            return JSON if target is None else self.read(target, (*within, ref))
        if "const" in schema or "enum" in schema:
            return _type_of_values([schema["const"]] if "const" in schema else schema["enum"])
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._union([part for part in schema[union] if part != NULL], within)
        if any(keyword in schema for keyword in _COMPOUND):
            return JSON
        kind = schema.get("type")
        if isinstance(kind, list):
            others = [one for one in kind if one != "null"]
            return self._union([{**schema, "type": one} for one in others], within)
        if kind == "object":
            return self._struct(schema, within)
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            return Items(self.read(schema["items"], within))
        return _TYPES.get(str(kind), JSON)

    def _target(self, ref: Any) -> Any:
        """Value that a reference within the document leads to; None for others."""
        if not isinstance(ref, str) or not ref.startswith("#"):
            return None
        found = self._root
        for part in ref[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                return None
            found = found[name]
        return found

    def _union(self, parts: list[Any], within: tuple[str, ...]) -> ColumnType:
        found = {self.read(part, within) for part in parts}
        if found == {INT, FLOAT}:
            return FLOAT
        return found.pop() if len(found) == 1 else JSON

    def _struct(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> ColumnType:
        named = schema.get("properties")
        others = schema.get("additionalProperties", not self._closed)
        if not isinstance(named, Mapping) or not named or others is not False:
            return JSON
        return Struct(tuple((name, self.read(part, within)) for name, part in named.items()))


def _type_of_values(values: Any) -> ColumnType:
    kinds = {type(value) for value in values if value is not None} if isinstance(values, list | tuple) else set()
    if kinds == {int, float}:
        return FLOAT
    one = kinds.pop() if len(kinds) == 1 else object
    return {str: TEXT, int: INT, float: FLOAT, bool: BOOL}.get(one, JSON)
