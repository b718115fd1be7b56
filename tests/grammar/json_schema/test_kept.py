"""Automata cached per process: grammars are the same with and without the cache, and numbers aren't mixed up."""

from collections import OrderedDict

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.grammar.json_schema import json_text as texts

SCHEMAS = [
    {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 2}, "ab": {"type": "integer", "minimum": 3}},
    },
    {"type": "array", "items": {"type": ["string", "null"], "pattern": "^[ab]+$"}},
    {"type": "string", "maxLength": 3},
]
INSTANCES = [
    "{}", '{"a": "xy"}', '{"a": "xyz"}', '{"ab": 3}', '{"ab": 2}', '{"b": [1], "a\\n": {"c": 1}}', '{"a": "\\n\\\\"}',
    '["ab", null]', '["c"]', '[""]', '"\\u00e9\\n\\""', '"abcd"', '"abc"',
    '{"abc": 1, "": 2}', '{"\\u0061": 5}', '{"é": 5}',
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_kept_parts_change_nothing(schema, monkeypatch):
    warm = JsonSchemaCompiler.compile(schema)
    again = JsonSchemaCompiler.compile(schema)
    monkeypatch.setattr(texts, "_automata", {})
    monkeypatch.setattr(texts, "_names", (OrderedDict(),))
    monkeypatch.setattr(texts, "KEPT_SIZES", ((1 << 20, 1),))
    cold = JsonSchemaCompiler.compile(schema)
    assert list(texts._automata) == list(texts._names[0])
    assert len(texts._automata) <= 1
    answers = [cold.accepts(text) for text in INSTANCES]
    assert any(answers)
    assert not all(answers)
    assert [warm.accepts(text) for text in INSTANCES] == answers
    assert [again.accepts(text) for text in INSTANCES] == answers


def test_equal_numbers_that_are_written_differently():
    """1e23 is a hundred thousand trillion millions; as an integer Python has it a little below."""
    below = int(1e23)
    assert below == 1e23
    assert not JsonSchemaCompiler.compile({"type": "integer", "maximum": below}).accepts(str(10**23))
    assert JsonSchemaCompiler.compile({"type": "integer", "maximum": 1e23}).accepts(str(10**23))
    assert not JsonSchemaCompiler.compile({"type": "integer", "maximum": below}).accepts(str(10**23))


def test_tags_that_look_alike_are_distinguished():
    """Of a union: 1 and true are different values, 1 and 1.0 are the same."""
    union = [{"type": "object", "properties": {"t": {"enum": [v]}}, "required": ["t"]} for v in (1, True, "1", None)]
    grammar = JsonSchemaCompiler.compile({"oneOf": union})
    assert all(grammar.accepts(f'{{"t": {v}}}') for v in ("1", "true", '"1"', "null"))
    of = [{**union[0], "properties": {"t": {"const": v}}} for v in (1, 1.0, 2)]
    twice = JsonSchemaCompiler.compile({"oneOf": of})
    assert twice.accepts('{"t": 2}')
    assert not twice.accepts('{"t": 1}')


def test_large_automata_take_no_place_of_small_ones(monkeypatch):
    monkeypatch.setattr(texts, "_automata", {})
    monkeypatch.setattr(texts, "_names", (OrderedDict(), OrderedDict()))
    monkeypatch.setattr(texts, "KEPT_SIZES", ((200, 3), (3000, 2)))
    for n in (1, 500, 2, 600, 3, 700, 4, 9000):
        JsonSchemaCompiler.compile({"type": "string", "pattern": "^a[bc]*$", "maxLength": n})
    small, large = texts._names
    assert len(small) == 3
    assert len(large) == 2
    assert set(texts._automata) == {*small, *large}
    assert all(kept.automaton.n_states <= 200 for kept in map(texts._automata.get, small))


def test_a_string_that_no_text_meets_is_kept_as_such(monkeypatch):
    monkeypatch.setattr(texts, "_automata", {})
    none = {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}
    schema = {"type": "object", "properties": {"a": none, "b": {"type": "null"}}}
    for _ in range(2):
        grammar = JsonSchemaCompiler.compile(schema)
        assert grammar.accepts('{"b": null}')
        assert not grammar.accepts('{"a": "a"}')
        with pytest.raises(GrammarError, match=r"matches no text at all.*no value meets the schema at #"):
            JsonSchemaCompiler.compile({**schema, "required": ["a"]})
