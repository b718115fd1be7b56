"""The table of a deterministic automaton, beside a naive twin: states, numbers and work are the same."""

import itertools
import random

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar import RuleSet
from oxillama.grammar.automata.dfa import Dfa, Part
from oxillama.grammar.automaton import utf8_sequences
from oxillama.grammar.matcher import Grammar
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.regular import conditions
from tests.grammar.automata.naive_dfa import NaiveDfa

PATTERNS = (
    "^[a-z]+x|y$", "a.*b", "^(ab|a|bc)*$", "", "^$", "^a{2,5}[^a]?$", "^(?!ab)[abc]*$", "b$", "[\\u00e9-\\u{10000}]",
    "^(?=.*a)(?=.*b).+$", "^[a-c]{0,3}(x|$)", "\\d\\w", "(^a|b)c*", "^x*y?z{3}",
)  # fmt: skip


def parts_of(*patterns, negated=()):
    found = [part for pattern in patterns for part in conditions(parse_regex(pattern))]
    return [Part(part.node, part.negated != (i in negated)) for i, part in enumerate(found)]


def assert_same(parts, least, most):
    fast, slow = Dfa(parts, least, most), NaiveDfa(parts, least, most)
    assert fast.table.rows() == slow.rows
    assert fast.table.finals() == sorted(slow.finals)
    assert fast.table.alive() == sorted(slow.live)
    assert fast.work == slow.work


@pytest.mark.parametrize("pattern", PATTERNS)
def test_table_of_one_pattern(pattern):
    for least, most in ((0, None), (2, None), (0, 3), (3, 3), (1, 0)):
        assert_same(parts_of(pattern), least, most)


def test_tables_of_several_conditions():
    rng = random.Random(3)
    for _ in range(60):
        patterns = rng.sample(PATTERNS, rng.randint(1, 3))
        negated = {i for i in range(3) if rng.random() < 0.4}
        least, most = rng.choice([(0, None), (rng.randint(0, 3), None), (rng.randint(0, 3), rng.randint(1, 6))])
        assert_same(parts_of(*patterns, negated=negated), least, most)


@pytest.mark.parametrize(("patterns", "most"), [(("(a|b)*a(a|b){12}",), None), (("^[a-z]*[0-9]$", "x"), 2**40)])
def test_both_give_up_at_the_same_work(patterns, most):
    for limit in (200, 5000, 40_000):
        spent = []
        for kind in (Dfa, NaiveDfa):
            try:
                spent.append(kind(parts_of(*patterns), 0, most, limit).work)
            except GrammarError as error:
                spent.append(str(error))
        assert spent[0] == spent[1]
        if limit == 200:
            assert "too many states" in spent[0]


def test_expression_of_a_table_matches_its_texts():
    rules = RuleSet()
    root = rules.new_rule("root")
    dfa = Dfa(parts_of("^[ab]*$", "ba"), 2, 4)
    rules.define(root, dfa.expr(rules, lambda ranges: rules.chars(utf8_sequences(ranges))))
    grammar = Grammar.from_rules(rules, root)
    texts = {"".join(t) for n in range(6) for t in itertools.product("abc", repeat=n)}
    fit = {t for t in texts if grammar.accepts(t)}
    assert fit == {t for t in texts if "ba" in t and "c" not in t and 2 <= len(t) <= 4}
