"""Too many combinations are refused by their number, at the place where the search itself would refuse them."""

from random import Random

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Budget
from oxillama.grammar.json_schema import tableau
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.literals import Literal

NAMES = [f"n{i}" for i in range(16)]


def conditional(rng, i):
    """if a property has a value, then another one is required or bounded."""
    value = {"const": rng.choice(["a", "b", i])}
    condition = {"properties": {rng.choice(NAMES[:3]): value}, **rng.choice([{}, {"required": [NAMES[0]]}])}
    then = rng.choice([{"required": [NAMES[i % 16]]}, {"properties": {NAMES[i % 16]: {"minLength": i}}}])
    return {"if": condition, "then": then, **rng.choice([{}, {"else": {"properties": {NAMES[-1]: False}}}])}


def union(rng, i):
    kinds = rng.sample([{"type": "string"}, {"type": "integer"}, {"enum": [i]}, {"minimum": i}, {"maxLength": i}], 3)
    ways = [{"properties": {NAMES[(i + k) % 16]: kind}} for k, kind in enumerate(kinds)]
    return {"anyOf": ways}


def required(rng, i):
    return rng.choice([
        {"anyOf": [{"required": [NAMES[i % 16]]}, {"required": [rng.choice(NAMES)]}]},
        {"not": {"required": rng.sample(NAMES, 2)}},
        {"dependentRequired": {rng.choice(NAMES): [rng.choice(NAMES)]}},
        {"additionalProperties": False, "properties": dict.fromkeys(rng.sample(NAMES, 12), True)},
    ])  # fmt: skip


def drawn(seed):
    """A schema with about twice as many combinations as are allowed, if none excludes another."""
    rng = Random(seed)
    kinds = rng.choice([[conditional], [union], [conditional, union], [conditional, union, union, required]])
    parts, size = [], 1
    while size < 4000:
        kind = rng.choice(kinds)
        parts.append(kind(rng, len(parts)))
        size *= 3 if kind is union else 2
    return {"type": "object", "allOf": parts}


def outcome(schema):
    """The number of branches of a schema, or the error."""
    return searched(schema)[0]


def searched(schema):
    """The outcome, how many literals were added to branches until then, and what the probes before took."""
    search = tableau.Tableau(Documents(schema, 2020), Budget())
    try:
        found = len(search.branches([Literal(schema, True, "", None)]))
    except GrammarError as error:
        found = str(error)
    return found, search.work, search.probing.spent


@pytest.mark.sweep(8)
@pytest.mark.parametrize("seed", range(24))
def test_products_say_what_the_search_says(seed, monkeypatch):
    schema = drawn(seed)
    quick = outcome(schema)
    monkeypatch.setattr(tableau, "MAX_PROBES", 0)
    assert quick == outcome(schema)


def test_a_product_is_found_without_a_search(monkeypatch):
    """Of 2^40 combinations, with the place of the condition at which a search would have 2048 branches."""
    schema = {
        "type": "object",
        "allOf": [
            {"if": {"properties": {f"if{i}": {"const": i}}}, "then": {"required": [f"then{i}"]}} for i in range(40)
        ],
    }
    quick, n_quick, probed = searched(schema)
    assert "more than 2048 combinations" in quick
    assert n_quick < 200
    assert probed < 20_000
    monkeypatch.setattr(tableau, "MAX_PROBES", 0)
    slow, n_slow, _ = searched(schema)
    assert slow == quick
    assert n_slow > 2000


@pytest.mark.parametrize("n", [100, 1500])
def test_many_forks_neither_recurse_nor_take_work_beside_the_budget(n):
    """Probes have a part of the budget for all of them together."""
    of_pairs = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(n)]
    of_nots = [{"not": {"properties": {f"a{i}": {"type": "string"}, f"b{i}": {"type": "number"}}}} for i in range(n)]
    for parts in (of_pairs, of_nots):
        schema = {"type": "object", "allOf": parts}
        documents, budget = Documents(schema, 2020), Budget(300_000)
        made = tableau.Tableau(documents, budget)
        with pytest.raises(GrammarError):
            made.branches([Literal(schema, True, "", None)])
        assert made.probing.limit == 300_000 // 8
