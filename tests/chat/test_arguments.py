"""Arguments against schemas: the cases of the official test suite, and refusal of keywords that can't be checked."""

import json
import lzma
from pathlib import Path

import pytest

from oxillama.chat.arguments import faults
from oxillama.chat.schema_check import check_schema
from oxillama.errors import ConfigError

SUITE = Path(__file__).parents[1] / "data" / "json_schema_suite.json.xz"


def test_the_official_cases():
    """Of draft 2020-12, without the optional ones: schemas whose keywords are known, and only those are refused."""
    groups = json.loads(lzma.decompress(SUITE.read_bytes()))["draft2020-12"]
    checked, wrong, refused = 0, [], 0
    for _, schema, tests in (group for name in groups if not name.startswith("optional/") for group in groups[name]):
        try:
            check_schema(schema)
        except ConfigError:
            refused += 1
            continue
        for _, value, valid in tests:
            checked += 1
            found = list(faults(schema, value))
            wrong += [(schema, value, found)] if bool(found) == valid else []
    assert wrong == []
    assert (checked, refused) == (887, 159)


PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 2}, "days": {"type": "array", "items": {"minimum": 1}}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "arguments must have 'city'"),
        ({"city": 3}, "arguments.city must be of type string, not 3"),
        ({"city": "x"}, "arguments.city must have a length of at least 2, not 1"),
        ({"city": "Rome", "days": [1, 0]}, r"arguments.days[1] must be at least 1, not 0"),
        ({"city": "Rome", "x": 1}, "arguments.x must not be there"),
        ([], "arguments must be of type object, not []"),
    ],
)
def test_a_fault_names_its_place(value, message):
    assert message in list(faults(PLACE, value))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (3, "parameters must be a schema"),
        ({"properties": {"a": 3}}, "parameters.properties.a must be a schema"),
        ({"properties": []}, "parameters has properties"),
        ({"anyOf": {}}, "parameters has anyOf"),
        ({"unevaluatedProperties": False}, "keyword 'unevaluatedProperties', which can't be checked"),
        ({"nullable": True}, "keyword 'nullable'"),
        ({"items": [{}]}, "parameters.items must be a schema"),
        ({"type": "text"}, "parameters has type 'text'"),
        ({"minLength": "1"}, "parameters has minLength '1'"),
        ({"minimum": True}, "parameters has minimum True"),
        ({"multipleOf": 0}, "parameters has multipleOf 0"),
        ({"pattern": "("}, "a pattern that can't be checked"),
        ({"pattern": "a)|(b"}, "a pattern that can't be checked"),
        ({"patternProperties": {"(?<=a)": {}}}, "a pattern that can't be checked"),
        ({"$ref": "#/nothing"}, "leads to nothing"),
        ({"$ref": "https://example.org/a.json"}, "leads to nothing"),
        ({"$ref": "#/examples/0", "examples": [{"mystery": 1}]}, "what is no schema"),
        ({"$schema": "https://example.org/mine"}, "a language that isn't known"),
    ],
)
def test_schemas_that_cannot_be_checked(schema, message):
    with pytest.raises(ConfigError) as error:
        check_schema(schema)
    assert message in str(error.value)


def test_schemas_that_go_round_in_circles_end():
    """As a fault, also where a fault would make something else fit."""
    twice = {"$ref": "#"}
    for schema in (
        {"allOf": [twice, twice]},
        {"anyOf": [twice, twice]},
        {"oneOf": [twice, twice]},
        {"not": twice},
        {"if": twice, "then": True, "else": True},
    ):
        check_schema(schema)
        assert "too many steps" in list(faults(schema, {}))[-1]


def test_deep_schemas_and_values():
    deep = {}
    for _ in range(10_000):
        deep = {"not": deep}
    with pytest.raises(ConfigError, match="at most 100 levels"):
        check_schema(deep)
    value = []
    for _ in range(300):
        value = [value]
    assert "too deep" in list(faults({"items": {"$ref": "#"}}, value))[-1]


def test_a_pattern_that_would_take_forever_does_not():
    assert len(list(faults({"pattern": "^(a+)+$"}, "a" * 10_000 + "b"))) == 1
