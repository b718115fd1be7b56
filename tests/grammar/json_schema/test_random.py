"""Random schemas and random instances: the grammar against an independent validator."""

import itertools
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from tests.grammar.json_schema.naive import is_valid

NAMES = ["a", "b", "cc", "é"]
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -3, 1.5, 2.0, 10, "", "a", "b", "ab", "é😀", 'q"\\', "a" * 5])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "zz", "ab"]), inner, max_size=4)
    ),
    max_leaves=6,
)
NUMBERS = st.sampled_from([-3, 0, 1, 1.5, 2, 2.5, 10])
PATTERNS = st.sampled_from(["a", "^a", "b$", "^[ab]*$", "^(a|é)", "^.{2,3}$", "[^a]", "^$"])
COUNTS = st.integers(0, 3)
KINDS = st.sampled_from(["null", "boolean", "number", "integer", "string", "array", "object"])


def keywords(inner):
    few = st.lists(inner, min_size=1, max_size=3)
    names = st.sampled_from(NAMES)
    some = st.lists(names, max_size=2, unique=True)
    return {
        "type": KINDS | st.lists(KINDS, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
        "multipleOf": st.sampled_from([1, 2, 3, 0.5, 1.5]),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), COUNTS),
        **dict.fromkeys(("minContains", "maxContains"), COUNTS),
        "pattern": PATTERNS,
        **dict.fromkeys(("items", "contains", "additionalProperties", "not", "if", "then", "else"), inner),
        "propertyNames": inner,
        **dict.fromkeys(("prefixItems", "allOf", "anyOf", "oneOf"), few),
        "uniqueItems": st.booleans(),
        "properties": st.dictionaries(names, inner, max_size=3),
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "required": some,
        "dependentRequired": st.dictionaries(names, some, max_size=2),
        "dependentSchemas": st.dictionaries(names, inner, max_size=2),
    }


def objects(inner):
    known = keywords(inner)
    return st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: known[name] for name in chosen})
    )


SCHEMAS = st.recursive(st.booleans() | objects(st.booleans()), objects, max_leaves=8)


def orders(value):
    """A value with its keys in every order, at every depth."""
    if isinstance(value, list):
        return [list(items) for items in itertools.product(*map(orders, value))]
    if isinstance(value, dict):
        return [
            dict(zip(keys, items, strict=True))
            for keys in itertools.permutations(value)
            for items in itertools.product(*(orders(value[k]) for k in keys))
        ]
    return [value]


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=12))
def test_instances_are_accepted_exactly_if_they_are_valid(schema, values):
    try:
        grammar = JsonSchemaCompiler.compile(schema)
    except GrammarError as error:
        if "no text at all" in str(error):
            assert not any(is_valid(value, schema) for value in values)
        return
    for value in values:
        # A valid one in some order of its keys, that of the schema, and of others as many as a test has time for.
        valid = is_valid(value, schema)
        some = itertools.islice(orders(value), None if valid else 50)
        texts = (json.dumps(v, ensure_ascii=a) for v in some for a in (True, False))
        assert any(grammar.accepts(text) for text in texts) == valid, value
