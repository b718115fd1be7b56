"""Strings and numbers are made after the structure of a schema, patterns are cut at free ends, and constants put
together: refusals come early, and the language stays the same."""

import gc
import itertools
import json
import pickle
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler, compilation, tableau
from oxillama.grammar.json_schema import json_text as texts
from tests.grammar.pattern_strategies import patterns

compiled = JsonSchemaCompiler.compile
LETTERS = ["".join(t) for n in range(6) for t in itertools.product("ab", repeat=n)]
PATTERNS = patterns("a", "b", "[ab]", "(?:)", "(?:ab|b)", "(?:a|)", "^", "$")


@settings(max_examples=60)
@given(PATTERNS, st.integers(0, 3), st.integers(0, 5))
def test_patterns_that_are_found_anywhere(pattern, least, most):
    """What any text beside a pattern makes needless is left out."""
    schema = {"type": "string", "pattern": pattern, "minLength": least, "maxLength": most}
    expected = [text for text in LETTERS if least <= len(text) <= most and re.search(pattern, text)]
    try:
        grammar = compiled(schema)
    except GrammarError:  # no text matches
        assert not expected
        return
    assert [text for text in LETTERS if grammar.accepts(json.dumps(text))] == expected


def test_a_long_end_of_a_pattern_takes_no_states():
    """A pattern that any text may follow is found where the fewest repeats are."""
    long = compiled({"type": "string", "pattern": "(x{1,9})?[ab]{1,500}"})
    short = compiled({"type": "string", "pattern": "[ab]"})
    assert long.automaton.n_states == short.automaton.n_states


def test_structure_is_refused_before_any_string_is_made(monkeypatch):
    def never(*_):
        raise AssertionError("a string was made")

    monkeypatch.setattr(texts.JsonText, "_kept", never)
    many = {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
    string = {"type": "string", "pattern": "^arn:.*:[a-z]+$", "maxLength": 99}
    with pytest.raises(GrammarError, match="uniqueItems at #/properties/b"):
        compiled({"type": "object", "properties": {"a": string, "b": many}})


def test_threads_share_the_kept_automata(monkeypatch):
    monkeypatch.setattr(texts, "KEPT_SIZES", ((1 << 8, 2), (1 << 11, 1), (1 << 15, 1)))
    schemas = [{"type": "string", "pattern": f"^{'ab' * n}[cd]", "maxLength": 30} for n in range(12)]
    alone = [compiled(schema).automaton.n_states for schema in schemas]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda schema: compiled(schema).automaton.n_states, schemas * 8))
    finally:
        sys.setswitchinterval(interval)
    assert together == alone * 8


@pytest.mark.parametrize("properties", [{}, {"a": {"type": "integer"}}, {"a": True, "b": {"enum": ["x"]}}])
@pytest.mark.parametrize("required", [[], ["a"], ["c"]])
@pytest.mark.parametrize("more", [{}, {"additionalProperties": False}, {"patternProperties": {"^c": {"type": "null"}}}])
def test_plain_objects_are_those_that_have_alternatives(properties, required, more):
    """A keyword that says nothing sends an object through the search of combinations."""
    schema = {"type": "object", "properties": properties, "required": required, **more}
    values = [dict(zip(names, items, strict=True)) for names in (("a",), ("a", "b"), ("a", "c"), ("c",), ())
              for items in itertools.product((1, "x", None), repeat=len(names))]  # fmt: skip
    found = []
    for one in (schema, {**schema, "anyOf": [{}, {"minProperties": 0}]}):
        try:
            grammar = compiled(one)
        except GrammarError:
            found.append(None)
        else:
            found.append([grammar.accepts(json.dumps(value)) for value in values])
    assert found[0] == found[1]


@pytest.mark.parametrize("most", [3, 5000])
def test_what_a_string_is_refused_for_names_its_place(most):
    refused = {"type": "string", "pattern": "^a(?=b)c", "maxLength": most}
    with pytest.raises(GrammarError, match="at #/properties/b: looking ahead"):
        compiled({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": refused}})


def test_places_of_refusals():
    hidden = {"type": "string", "pattern": "^a(?=b)c"}
    with pytest.raises(GrammarError, match=r"^schema at #: looking ahead"):
        compiled(hidden)
    leaves = {"b": {"type": "string", "maxLength": 3}, "c": {"type": "null"}}
    names = {"^(a|b)*a(a|b){40}$": {"type": "integer"}}
    inner = {"type": "object", "properties": leaves, "patternProperties": names}
    with pytest.raises(GrammarError, match="at #/properties/x: "):
        compiled({"type": "object", "properties": {"x": inner}})


@pytest.mark.parametrize("times", ["{2,3}", "{2,}"])
def test_nested_repeats_are_not_copied_again(times):
    """What is cut for any text beside it takes no more states than as it was."""
    nested = "(?:" * 9 + "a" + f"){times}" * 9
    free, bound, one = (compiled({"type": "string", "pattern": p}) for p in (nested, f"^{nested}$", "a"))
    assert free.automaton.n_states <= bound.automaton.n_states + one.automaton.n_states


def test_demands_that_no_string_meets():
    nothing = {"type": "string", "pattern": "^a$", "minLength": 2}
    grammar = compiled({"type": "object", "properties": {"a": nothing, "b": {"type": "null"}}})
    assert grammar.accepts('{"b": null}')
    assert not grammar.accepts('{"a": "a"}')
    assert not grammar.accepts('{"a": "aa"}')


def n_branches(monkeypatch, schema):
    found = []

    class Noted(tableau.Tableau):
        def branches(self, literals):
            branches = super().branches(literals)
            found.append(len(branches))
            return branches

    monkeypatch.setattr(compilation, "Tableau", Noted)
    grammar = compiled(schema)
    monkeypatch.undo()
    return grammar, max(found)


CONSTANTS = [{"const": "a", "title": "A"}, {"enum": ["b", "c"], "x-note": 1}, {"type": "string", "const": "d"}]


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_constants_are_one_list(keyword, monkeypatch):
    others = [{"type": "integer"}, {"type": "string", "minLength": 2}]
    grammar, n = n_branches(monkeypatch, {keyword: [*CONSTANTS, *others]})
    assert n == 3
    for value in ("a", "b", "c", "d", 1, "aa"):
        assert grammar.accepts(json.dumps(value))
    for value in ("e", "", None, 1.5):
        assert not grammar.accepts(json.dumps(value))


def test_a_constant_that_two_alternatives_list():
    twice = [*CONSTANTS, {"const": "b"}]
    either, one = compiled({"anyOf": twice}), compiled({"oneOf": twice})
    assert [either.accepts(f'"{text}"') for text in "abcde"] == [True] * 4 + [False]
    assert [one.accepts(f'"{text}"') for text in "abcde"] == [True, False, True, True, False]


@pytest.mark.parametrize("beside", [{"maxLength": 0}, {"not": {"const": "a"}}, {"pattern": "b"}, {"type": "null"}])
def test_constants_with_other_demands(beside):
    """An alternative is put with others only if it says nothing else."""
    grammar = compiled({"anyOf": [{"const": "a", **beside}, {"const": "c"}, {"const": "d"}]})
    assert [grammar.accepts(f'"{text}"') for text in "acd"] == [False, True, True]


REFUSED = [
    {"properties": {"a": {"$ref": "elsewhere"}, "b": {"type": "string", "pattern": "^x{3}"}}},
    {"properties": {"a": {"type": "array", "uniqueItems": True}, "b": {"type": "integer", "minimum": 7}}},
    {"type": "object", "minProperties": 1, "properties": {"a": {"type": "string", "pattern": "(a"}}},
]


@pytest.mark.parametrize("schema", REFUSED, ids=str)
def test_a_refusal_holds_nothing_of_the_compilation(schema):
    """Not by its traceback or context either, nor by a circle of references."""
    with pytest.raises(GrammarError) as first:
        compiled(schema)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(GrammarError) as raised:
            compiled(json.dumps(schema))
        left = [type(one).__name__ for one in gc.get_objects()]
    finally:
        gc.enable()
    assert str(raised.value) == str(first.value)
    assert raised.value.__context__ is None
    assert not {"Compilation", "JsonText", "Tableau", "Branch", "Documents"} & set(left)


def test_a_grammar_of_a_text_is_pickled_as_the_text():
    text = json.dumps({"$defs": {"a": {"const": "found"}}, "$ref": "#/$defs/a"})
    grammar = compiled(text)
    again = pickle.loads(pickle.dumps(grammar))
    assert text.encode() in pickle.dumps(grammar)
    assert again.accepts('"found"')
    assert again.automaton.n_states == grammar.automaton.n_states


def test_schemas_that_only_refer_to_others_are_these():
    """Through any number of names, and whatever the draft does with keywords beside a reference."""
    defs = {
        "last": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}, "required": ["n"]},
        "next": {"$ref": "#/$defs/last", "title": "the next"},
        "first": {"$ref": "#/$defs/next", "description": "the first"},
    }
    schema = {"$defs": defs, "properties": {name: {"$ref": f"#/$defs/{name}"} for name in defs}, "type": "object"}
    inline = {"type": "object", "properties": dict.fromkeys(defs, defs["last"])}
    grammar = compiled(schema, mode="generate")
    assert grammar.automaton.n_states == compiled(inline, mode="generate").automaton.n_states
    assert grammar.accepts('{"last": {"n": 1}, "next": {"n": 2}, "first": {"n": 3}}')
    assert not grammar.accepts('{"first": {"n": 4}}')
    schema["properties"]["first"]["properties"] = {"n": {"type": "integer", "minimum": 2}}
    for draft, is_valid in ((2020, False), (7, True)):
        beside = compiled(schema, mode="generate", draft=draft)
        assert beside.accepts('{"first": {"n": 1}}') == is_valid
        assert beside.accepts('{"first": {"n": 2}}')
    with pytest.raises(GrammarError, match="leads back to itself"):
        compiled({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}})
