"""Differences between drafts: integers, names of resources, and keywords that a schema's own draft doesn't know."""

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler

DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}


def answers(schema, texts, draft=None):
    """Whether each text is accepted; None if nothing is an instance."""
    try:
        grammar = JsonSchemaCompiler.compile(schema, draft=draft)
    except GrammarError as error:
        if "no text at all" in str(error):
            return None
        raise
    return [grammar.accepts(text) for text in texts]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": ["integer", "null"], "minimum": 1},
        {"type": "integer", "enum": [7, 8]},
        {"allOf": [{"type": "number"}, {"type": "integer"}]},
    ],
)
def test_integers_of_draft_4_have_no_point(schema):
    texts = ["7", "7.0", "7e+16"]
    assert answers(DRAFT_4 | schema, texts) == [True, False, False]
    assert answers(schema, texts)[:2] == [True, True]


def test_draft_4_names_resources_by_id():
    schema = {
        "id": "http://x/y.json",
        "properties": {"a": {"$ref": "http://x/y.json#/definitions/n"}, "id": {"type": "string"}},
        "definitions": {"n": {"type": "null"}},
    }
    assert answers(DRAFT_4 | schema, ['{"a": null}', '{"a": 1}', '{"id": 1}']) == [True, False, False]
    with pytest.raises(GrammarError, match="outside this document"):
        JsonSchemaCompiler.compile(schema)


# In these drafts the negated schemas all say nothing, so that nothing is an instance.
@pytest.mark.parametrize(
    ("draft", "negated"),
    [
        (7, {"prefixItems": [False]}),
        (7, {"dependentRequired": {"a": ["b"]}}),
        (7, {"dependentSchemas": {"a": False}}),
        (4, {"const": 1}),
        (4, {"contains": {"type": "null"}}),
        (4, {"propertyNames": {"maxLength": 1}}),
        (4, {"if": {"type": "null"}, "then": False}),
        (2020, {"dependencies": {"a": ["b"]}}),
        (None, {"dependencies": {"a": ["b"]}}),
    ],
)
def test_the_negation_of_another_drafts_keyword_implies_nothing(draft, negated):
    texts = ["[1]", '{"a": 1}', "1", "2", "null", '{"abc": 1}', '{"a": 1, "b": 2}']
    assert not any(answers({"not": negated}, texts, draft) or [])
    one_of = {"oneOf": [negated, {"type": ["array", "object", "number", "null"]}]}
    assert not any(answers(one_of, texts, draft) or [])
    stated = answers(negated, texts, draft)
    assert stated.count(False) > 0, "it is asserted all the same"


def test_counts_of_contained_items_came_with_draft_2019():
    schema = {"contains": {"type": "null"}, "minContains": 2}
    texts = ["[]", "[null]", "[null, null]"]
    assert answers({"not": schema, "type": "array"}, texts, 7) == [True, False, False]
    assert answers({"not": schema, "type": "array"}, texts) == [True, True, False]
    with pytest.raises(GrammarError, match="minContains at #"):
        JsonSchemaCompiler.compile(schema | {"minContains": 0}, draft=7)
    assert answers(schema | {"minContains": 0}, texts) == [True, True, True]


def test_first_items_came_with_draft_2020():
    schema = {"prefixItems": [{"type": "null"}], "items": {"type": "integer"}}
    assert answers(schema, ["[null, 1]", "[null, null]"]) == [True, False]
    with pytest.raises(GrammarError, match="prefixItems at #"):
        JsonSchemaCompiler.compile(schema, draft=7)


@pytest.mark.parametrize("value", [{"a": 1}, [1, "b"]])
def test_listed_values_evaluate_nothing(value):
    inner = {"unevaluatedProperties": False, "unevaluatedItems": False}
    assert answers({"const": value, **inner}, ['{"a": 1}', '[1, "b"]']) is None
    assert answers({"anyOf": [{"enum": [value]}, {"type": "null"}], **inner}, ['{"a": 1}', '[1, "b"]', "null"]) == [
        False,
        False,
        True,
    ]
