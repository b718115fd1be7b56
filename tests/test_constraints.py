"""Settings that say what a text may be: checked, and kept so that nobody can change them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError
from oxillama.sampler_config import CONSTRAINTS

VALUES = {"grammar": 'root ::= "a"', "json_schema": {"type": "null"}, "regex": "a+", "choices": ["a", "b"]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_one_at_a_time(name):
    assert SamplerConfig(**{name: VALUES[name]}).constraint[0] == name
    for other in set(CONSTRAINTS) - {name}:
        with pytest.raises(ConfigError, match="are both given: a text can follow one of"):
            SamplerConfig(**{name: VALUES[name], other: VALUES[other]})
    assert SamplerConfig().constraint is None


@given(st.dictionaries(st.text(), JSON, max_size=4) | st.booleans())
def test_a_schema_is_kept_as_text_of_the_same_value_and_order(schema):
    kept = SamplerConfig(json_schema=schema).json_schema
    assert json.loads(kept) == schema
    assert json.dumps(json.loads(kept)) == json.dumps(schema)
    assert SamplerConfig(json_schema=kept).json_schema == kept
    hash(SamplerConfig(json_schema=schema))


def test_what_is_changed_later_does_not_count():
    schema, choices = {"type": "null"}, ["a"]
    config = SamplerConfig(json_schema=schema), SamplerConfig(choices=choices)
    schema["type"] = "string"
    choices.append("b")
    assert json.loads(config[0].json_schema) == {"type": "null"}
    assert config[1].choices == ("a",)


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"not": value}
    return value


class Row:
    """As pydantic's classes are, which stand for a schema without being one."""

    @classmethod
    def model_json_schema(cls):
        return {"type": "integer"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("grammar", 3, "grammar must be GBNF as a str or None, not 3"),
        ("regex", b"a", "regex must be a pattern as a str or None"),
        ("choices", "yes", "choices must be a list of texts or None, not 'yes'"),
        ("choices", 3, "choices must be a list of texts"),
        ("choices", [], "choices must hold at least one text"),
        ("choices", ["a", 3], r"choices\[1\] must be a str, not 3"),
        ("json_schema", "{", "json_schema must be a schema .*line 1"),
        ("json_schema", "[]", r"json_schema must be an object, true or false, not \[\]"),
        ("json_schema", Row, r"json_schema must be .*; give Row\.model_json_schema\(\)$"),
        ("json_schema", 3, "json_schema must be an object, true or false, not 3"),
        ("json_schema", [], "json_schema must be an object"),
        ("json_schema", {"enum": {1}}, "set is not JSON serializable"),
        ("json_schema", {"enum": [float("nan")]}, "json_schema must be a schema"),
        ("json_schema", {"properties": {1: {}}}, "keys are str, not 1"),
        ("json_schema", nested(100_000), "nests too deeply"),
        ("json_schema", "[" * 100_000, "nests too deeply"),
    ],
    ids=lambda value: None if isinstance(value, dict | list) or len(str(value)) > 40 else str(value),
)
def test_bad_values(field, value, message):
    with pytest.raises(ConfigError, match=message):
        SamplerConfig(**{field: value})
