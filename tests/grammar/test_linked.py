"""Compiled rules that became part of other grammars."""

import itertools

import pytest

from oxillama.grammar import Grammar
from oxillama.grammar.automaton import Automaton, RuleSet


def test_linked_rules_are_what_they_were_compiled_from():
    """A rule with calls and counts, as part of another grammar and copied into it."""
    inner = RuleSet()
    root, pair = inner.new_rule("inner"), inner.new_rule("pair")
    inner.define(pair, inner.seq((inner.literal(b"<"), inner.repeat(inner.rule(root), 0, 1), inner.literal(b">"))))
    inner.define(root, inner.seq((inner.rule(pair), inner.repeat(inner.range(0x61, 0x62), 0, 2))))
    automaton = Automaton(inner, root)
    outer = RuleSet()
    linked, top = outer.linked("linked", automaton), outer.new_rule("top")
    outer.define(top, outer.repeat(outer.alt((outer.literal(b"b"), outer.rule(linked))), 1))
    grammar = Grammar.from_rules(outer, top)
    whole = Grammar.parse('root ::= ("b" | inner)+\ninner ::= "<" inner? ">" [ab]{0,2}')
    for text in ("".join(t) for n in range(7) for t in itertools.product("<>ab", repeat=n)):
        assert grammar.accepts(text) == whole.accepts(text), text


def test_rules_that_may_be_empty_are_not_linked():
    inner = RuleSet()
    root = inner.new_rule("inner")
    inner.define(root, inner.repeat(inner.range(0x61, 0x61), 0))
    with pytest.raises(IndexError, match="empty"):
        RuleSet().linked("inner", Automaton(inner, root))
