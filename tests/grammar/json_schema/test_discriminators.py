"""Alternatives that a property with listed values tells apart: combinations that can't hold aren't expanded, and the
language stays the same."""

import itertools
import json
from random import Random

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from tests.grammar.json_schema.naive import is_valid

compiled = JsonSchemaCompiler.compile
VALUES = ["a", "b", 1, True, None]
NAMES = ("t", "u", "v")
INSTANCES = [
    *({name: value for name, value in zip(NAMES, values, strict=True) if value != "absent"}
      for values in itertools.product([*VALUES, "c", "absent"], [1, "a", "absent"], ["b", "absent"])),
    "a", 1, None,
]  # fmt: skip


def listed(rng):
    values = rng.sample(VALUES, rng.randint(1, 2))
    return {"const": values[0]} if len(values) == 1 else {"enum": values}


def condition(rng):
    name = rng.choice(["t", "t", "u"])
    found = {"properties": {name: listed(rng)}}
    if rng.random() < 0.5:
        found["required"] = [name]
    if rng.random() < 0.3:
        found["type"] = "object"
    return found


def schema_of(rng):
    def then():
        return rng.choice([{"required": [rng.choice(NAMES)]}, {"properties": {"v": listed(rng)}}, condition(rng)])

    def part():
        if rng.random() < 0.5:
            return {"if": condition(rng), "then": then(), **({"else": then()} if rng.random() < 0.3 else {})}
        return {rng.choice(["anyOf", "oneOf"]): [condition(rng) for _ in range(rng.randint(2, 3))]}

    found = {"allOf": [part() for _ in range(rng.randint(1, 4))]}
    return found | rng.choice([{}, {"type": "object"}, {"required": ["t"]}, {"type": "object", "required": ["t"]}])


@pytest.mark.sweep(40)
@pytest.mark.parametrize("seed", range(200))
def test_same_instances(seed):
    schema = schema_of(Random(seed))
    expected = [is_valid(value, schema) for value in INSTANCES]
    try:
        grammar = compiled(schema)
    except GrammarError:
        assert not any(expected)
        return
    for value, valid in zip(INSTANCES, expected, strict=True):
        texts = (
            {json.dumps(dict(pairs)) for pairs in itertools.permutations(value.items())}
            if isinstance(value, dict)
            else {json.dumps(value)}
        )
        accepted = [grammar.accepts(text) for text in texts]
        assert any(accepted) == valid, (value, schema)


def conditions(n, **more):
    parts = [{"if": {"properties": {"t": {"const": i}}, **more}, "then": {"required": [f"p{i}"]}} for i in range(n)]
    return {"type": "object", "properties": {"t": {"type": "integer"}}, "allOf": parts}


@pytest.mark.parametrize("more", [{}, {"required": ["t"]}], ids=["may be absent", "required"])
def test_many_conditions_on_one_property(more):
    """Each excludes the others: 30 of them have 2^30 combinations by their number, and some thirty that can hold."""
    grammar = compiled(conditions(30, **more))
    assert grammar.accepts('{"t": 7, "p7": null}')
    assert not grammar.accepts('{"t": 7, "p8": null}')
    assert grammar.accepts('{"t": 77}')
    assert grammar.accepts("{}") == bool(more)
