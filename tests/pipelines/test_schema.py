"""Types of columns for JSON schemas, and instances as their cells."""

import json

import pytest

from oxillama.data.columns import FLOAT, INT, JSON, TEXT, Items, Scalar, Struct, fitted
from oxillama.data.schema import type_of_schema

TREE = {"type": "object", "properties": {"value": {"type": "integer"}, "left": {"$ref": "#"}}}
NAMED = {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "array", "items": {"type": "number"}}}}
CASES = [
    ({"type": "string"}, TEXT),
    ({"type": "integer"}, INT),
    ({"type": ["integer", "null"]}, INT),
    ({"type": ["integer", "number"]}, FLOAT),
    ({"type": ["integer", "string"]}, JSON),
    ({"type": "boolean"}, Scalar("bool")),
    ({"type": "array", "items": {"type": "string"}}, Items(TEXT)),
    ({"type": "array"}, JSON),
    ({"type": "array", "items": {"type": "string"}, "prefixItems": [{}]}, JSON),
    ({"enum": ["a", "b", None]}, TEXT),
    ({"enum": [1, 2.5]}, FLOAT),
    ({"enum": [1, "a"]}, JSON),
    ({"const": True}, Scalar("bool")),
    ({"anyOf": [{"type": "number"}, {"type": "null"}]}, FLOAT),
    ({"oneOf": [{"type": "string"}, {"type": "boolean"}]}, JSON),
    ({"allOf": [{"type": "string"}]}, JSON),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, Struct((("a", TEXT),))),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, JSON),
    ({"type": "object", "additionalProperties": {"type": "string"}}, JSON),
    ({"type": "object"}, JSON),
    (TREE, Struct((("value", INT), ("left", JSON)))),
    (NAMED, Items(FLOAT)),
    ({"$ref": "#/nowhere"}, JSON),
    ({"$ref": "other.json"}, JSON),
    (True, JSON),
]


@pytest.mark.parametrize(("schema", "kind"), CASES, ids=lambda case: str(case)[:60])
def test_types_of_schemas(schema, kind):
    assert type_of_schema(schema, closed=True) == kind


def test_open_objects_are_text_where_the_schema_lets_them_have_more():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert type_of_schema(schema, closed=False) == JSON
    assert isinstance(type_of_schema({**schema, "additionalProperties": False}, closed=False), Struct)


def test_recursive_parts_are_text():
    tree = {**TREE, "properties": {"l": {"$ref": "#/$defs/t"}}}
    kind = type_of_schema({"$ref": "#/$defs/t", "$defs": {"t": tree}}, closed=True)
    assert kind == Struct((("l", JSON),))


def test_values_fit_their_types():
    kind = Struct((("a", INT), ("b", Items(FLOAT)), ("c", JSON), ("d", TEXT)))
    assert fitted({"a": 3.0, "b": [1, 2], "c": {"x": ["é"]}}, kind) == {
        "a": 3, "b": [1.0, 2.0], "c": '{"x": ["é"]}', "d": None,
    }  # fmt: skip
    assert json.loads(fitted(None, JSON)) is None
    assert fitted(None, kind) is None
    for number in (1 << 63, -(1 << 63) - 1, 1e300):
        with pytest.raises(OverflowError):
            fitted(number, INT)
    assert fitted(-(1 << 63), INT) == -(1 << 63)
