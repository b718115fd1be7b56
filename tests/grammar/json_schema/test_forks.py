"""Alternatives of a schema: which are held against what holds, and which demands are expanded first."""

from random import Random

import pytest

from oxillama import JsonSchemaCompiler
from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import compilation
from oxillama.grammar.json_schema.branch import Branch
from oxillama.grammar.json_schema.literals import refusal
from oxillama.grammar.json_schema.tableau import Tableau
from tests.grammar.json_schema.generated import Maker


def conditional(draw):
    """Conditions on shared properties, as configuration files have them."""
    names = "abcd"

    def one(depth):
        name = draw.choice(names)
        value = draw.choice(({"const": draw.choice("xyz")}, {"type": draw.choice(("string", "null"))}, False, True))
        found = {"properties": {name: value}}
        if draw.random() < 0.6:
            found["required"] = [draw.choice(names)]
        if draw.random() < 0.2:
            found["additionalProperties"] = False
        if depth and draw.random() < 0.4:
            keyword = draw.choice(("anyOf", "oneOf", "not"))
            found[keyword] = one(depth - 1) if keyword == "not" else [one(depth - 1) for _ in range(2)]
        return found

    parts = [{"if": one(1), "then": one(1), "else": one(0)} for _ in range(draw.randint(2, 4))]
    return {"type": "object", "properties": {name: {"type": ["string", "null"]} for name in names}, "allOf": parts}


def size(schema):
    """States of a schema's grammar, or the message of its refusal."""
    try:
        return JsonSchemaCompiler.compile(schema, mode="generate").automaton.n_states
    except GrammarError as error:
        return str(error)


class Thorough(Tableau):
    """Holds all forks against a branch whenever a literal is added: those that it has count as new."""

    def branches(self, literals):
        super().branches([])  # begins anew
        done, todo = [], [(Branch(), list(literals))]
        while todo:
            branch, demands = todo.pop()
            branch.added, branch.forks = branch.forks[:], []
            self.probe(branch, demands)
            if self.links is not None:
                return super().branches(literals)
            if branch.types and branch.forks:
                fork = min(branch.forks, key=lambda fork: fork.n)
                branch.forks = [other for other in branch.forks if other is not fork]
                if len(done) + len(todo) + fork.n > 2048:
                    path = fork.ways[0].literals[0].path
                    raise refusal(path, "schema", "its alternatives have more than 2048 combinations")
                todo += [(branch.copy(), way.literals[:]) for way in reversed(fork.ways)]
            elif branch.types:
                done.append(branch)
        return done


def test_forks_that_nothing_concerns_stay_as_they_are(monkeypatch):
    draw = Random(11)
    schemas = [*(Maker(draw).root() for _ in range(300)), *(conditional(draw) for _ in range(150))]

    def sizes(kind):
        """And what they took of their budgets."""
        made = []

        def noted(*args):
            made.append(kind(*args))
            return made[-1]

        monkeypatch.setattr(compilation, "Tableau", noted)
        return list(map(size, schemas)), sum(one.budget.spent for one in made)

    found, n_spent = sizes(Tableau)
    again, n_thorough = sizes(Thorough)
    assert found == again
    assert abs(n_thorough - n_spent) > 0.01 * n_spent  # forks were left out, at the price of finding that
    assert sum(isinstance(n, int) for n in found) > 100


def test_refusals_are_found_before_combinations_are_expanded():
    conditions = [{"if": {"required": [f"a{i}"]}, "then": {"required": [f"b{i}"]}} for i in range(30)]
    parts = [
        ("many", {"type": "object", "allOf": conditions}),
        ("unique", {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    ]
    for each in (parts, parts[::-1]):
        with pytest.raises(GrammarError, match="uniqueItems at #/properties/unique"):
            JsonSchemaCompiler.compile({"properties": dict(each)})
    with pytest.raises(GrammarError, match="2048 combinations"):
        JsonSchemaCompiler.compile(parts[0][1])


def test_references_in_circles_are_refused_each_time():
    schema = {
        "properties": {"a": {"$ref": "#/$defs/b"}},
        "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}},
    }
    with pytest.raises(GrammarError, match="leads back to itself"):
        JsonSchemaCompiler.compile(schema)
