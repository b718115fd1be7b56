"""Negations of demands on all properties: one that breaks them is required, under any name."""

import itertools
import json

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from tests.grammar.json_schema.naive import is_valid

SCHEMAS = [
    {"additionalProperties": False},
    {"additionalProperties": {"type": "null"}},
    {"properties": {"a": {"type": "null"}}, "additionalProperties": False},
    {"properties": {"a": True}, "patternProperties": {"^b": {"type": "null"}}, "additionalProperties": {"const": 1}},
    {"patternProperties": {"a": {"type": "null"}, "b$": {"const": 1}}},
    {"propertyNames": {"maxLength": 1}},
    {"propertyNames": {"enum": ["a", "b"]}, "minProperties": 1},
]
SPEAKERS = [{}, {"properties": {"a": {"type": ["null", "integer"]}, "bb": True}}, {"required": ["a"]},
            {"properties": {"a": True, "bb": True}, "additionalProperties": False}]  # fmt: skip
OBJECTS = [
    dict(zip(names, values, strict=True))
    for n in range(4)
    for names in itertools.permutations(("a", "bb", "ab"), n)
    for values in itertools.product((None, 1), repeat=n)
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_opposites_beside_other_demands(schema):
    for speaker in SPEAKERS:
        whole = speaker | {"type": "object", "not": schema}
        try:
            grammar = JsonSchemaCompiler.compile(whole)
        except GrammarError as error:
            assert "no text at all" in str(error)  # noqa: PT017 - others don't get here
            assert not any(is_valid(value, whole) for value in OBJECTS)
            continue
        for value in OBJECTS:
            orders = [dict(pairs) for pairs in itertools.permutations(value.items())]
            accepted = [grammar.accepts(json.dumps(order)) for order in orders]
            assert any(accepted) == is_valid(value, whole), (speaker, value)


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_alternatives_that_exclude_each_other_by_an_opposite(schema):
    whole = {"type": "object", "oneOf": [schema, {"required": ["a"]}, {"properties": {"bb": {"type": "null"}}}]}
    grammar = JsonSchemaCompiler.compile(whole)
    for value in OBJECTS:
        accepted = [grammar.accepts(json.dumps(dict(pairs))) for pairs in itertools.permutations(value.items())]
        assert any(accepted) == is_valid(value, whole), value


def test_a_property_that_comes_twice_counts_as_a_reader_takes_it():
    """The last one of a name is kept: so what must be there may not be overwritten."""
    grammar = JsonSchemaCompiler.compile({"type": "object", "not": {"additionalProperties": {"type": "integer"}}})
    assert grammar.accepts('{"x": 1, "x": "s"}')
    assert grammar.accepts('{"y": 1, "x": "s"}')
    assert not grammar.accepts('{"x": "s", "x": 1}')
    named = JsonSchemaCompiler.compile(
        {"type": "object", "properties": {"x": True}, "not": {"patternProperties": {"x": {"type": "integer"}}}}
    )
    assert named.accepts('{"x": "s", "y": 1}')
    assert not named.accepts('{"x": "s", "x": 1}')
    assert not named.accepts('{"xx": "s", "xx": 1}')


def test_more_than_three_required_unnamed_properties_are_refused():
    patterns = {f"^{c}": {"type": "integer"} for c in "abcde"}
    schema = {"type": "object", "allOf": [{"not": {"patternProperties": {p: s}}} for p, s in patterns.items()]}
    with pytest.raises(GrammarError, match=r"more than 3 properties without a name are required"):
        JsonSchemaCompiler.compile(schema)
