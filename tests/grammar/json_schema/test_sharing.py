"""Equal sub-schemas become one object, and mean what they meant."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama import JsonSchemaCompiler
from oxillama.errors import GrammarError
from oxillama.grammar.json_schema.sharing import shared


def test_equal_parts_are_one_object_but_for_their_notes():
    schema = {
        "properties": {"a": {"type": "string", "title": "A"}, "b": {"description": "B", "type": "string"}},
        "items": [{"enum": [1, 2]}, {"enum": [1, 2]}, {"enum": [2, 1]}],
    }
    made = shared(schema)
    assert list(made["properties"]) == ["a", "b"]
    assert made["properties"]["a"] == {"type": "string", "title": "A"}
    assert made["items"] == schema["items"]
    assert made["properties"]["a"] is made["properties"]["b"]
    assert made["items"][0] is made["items"][1] is not made["items"][2]


def test_parts_that_are_written_differently_stay_apart():
    pairs = [
        ({"const": 1}, {"const": True}), ({"const": 1}, {"const": 1.0}), ({"const": 0.0}, {"const": -0.0}),
        ({"properties": {"a": True, "b": True}}, {"properties": {"b": True, "a": True}}),
        ({"const": {"title": "x"}}, {"const": {"title": "y"}}), ({"enum": [["a"]]}, {"enum": ["a"]}),
        ({"properties": {"title": "x"}}, {"properties": {"title": "y"}}), ({"const": None}, {"const": False}),
    ]  # fmt: skip
    for one, other in pairs:
        made = shared({"anyOf": [one, other]})["anyOf"]
        assert json.dumps(made) == json.dumps([one, other])
        assert made[0] is not made[1]


def test_deep_and_circular_schemas_are_left_alone():
    deep: dict = {}
    for _ in range(100_000):
        deep = {"items": deep}
    assert shared(deep) is deep
    circle: dict = {}
    circle["items"] = circle
    assert shared(circle) is circle


def test_parts_that_are_one_object_are_read_once():
    part: dict = {"type": "null"}
    for _ in range(200):
        part = {"anyOf": [part, part]}
    made = shared(part)
    assert made["anyOf"][0] is made["anyOf"][1]


def test_shared_parts_take_less_of_the_budget():
    """Fifty copies of a union, each written out: they are expanded once."""
    kinds = [{"properties": {"kind": {"const": f"k{i}"}, "n": {"type": "integer"}}} for i in range(30)]
    text = json.dumps({"properties": {f"p{i}": {"title": f"P{i}", "oneOf": kinds} for i in range(50)}})
    once = json.dumps({"properties": {"p": {"oneOf": kinds}}})
    needed = 1
    while True:
        try:
            JsonSchemaCompiler.compile(once, budget=needed)
            break
        except GrammarError:
            needed *= 2
    grammar = JsonSchemaCompiler.compile(text, budget=4 * needed)
    assert grammar.accepts('{"p3": {"kind": "k1", "n": 1}}')
    assert not grammar.accepts('{"p3": {"kind": "k1", "n": "1"}}')


NOTES, DATA = ("title", "description", "$comment", "markdownDescription"), ("const", "enum", "default", "examples")
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")


def naive_content(part: Any, is_map: bool = False, is_value: bool = False) -> object:
    """What makes parts equal, as nested tuples."""
    exact = is_map or is_value
    if isinstance(part, list):
        return (list, is_value, *[naive_content(item, False, is_value) for item in part])
    if not isinstance(part, dict):
        return type(part), repr(part)
    found: list[object] = [dict, exact]
    for name, item in part.items():
        if exact or name not in NOTES or not isinstance(item, str):
            is_data = is_value or (not is_map and name in DATA)
            found += [name, naive_content(item, not exact and name in MAPS, is_data)]
    return tuple(found)


def naive_objects(part: Any, is_map: bool = False, is_value: bool = False) -> list[tuple[object, Any]]:
    """Each dict and list with its content, in order."""
    if not isinstance(part, dict | list):
        return []
    found = [(naive_content(part, is_map, is_value), part)]
    for name, item in part.items() if isinstance(part, dict) else [("", item) for item in part]:
        is_data = is_value or (isinstance(part, dict) and not is_map and name in DATA)
        becomes_map = isinstance(part, dict) and not (is_map or is_value) and name in MAPS
        found += naive_objects(item, becomes_map, is_data)
    return found


_NAMES = st.sampled_from(("title", "const", "enum", "properties", "items", "allOf", "type", "a"))
_LEAVES = st.sampled_from((None, True, False, 0, 1, 0.0, -0.0, 1.0, "", "x", "y"))
_PARTS = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4))


@given(st.dictionaries(_NAMES, _PARTS, max_size=4), _PARTS)
@settings(max_examples=300)
def test_objects_are_one_exactly_where_their_contents_are_equal(schema, part):
    schema = {**schema, "allOf": [part, json.loads(json.dumps(part))]}
    before = json.dumps(schema)
    made = shared(schema)
    assert json.dumps(schema) == before  # what was given stays as it was
    assert naive_content(made) == naive_content(schema)
    of_content: dict[object, Any] = {}
    for content, one in naive_objects(made):
        assert of_content.setdefault(content, one) is one
