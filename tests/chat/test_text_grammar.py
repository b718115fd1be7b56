"""Texts without marks: all short texts over few characters, against a search for the marks."""

import itertools
import re

import pytest

from oxillama.chat.grammar_parts import END, Parts
from oxillama.chat.patterns import Hole
from oxillama.chat.text_grammar import TextGrammar
from oxillama.grammar import Grammar

ALPHABET = "ab\n "
TEXTS = ["".join(text) for n in range(7) for text in itertools.product(ALPHABET, repeat=n)]
PLACES = {"": "", "line": r"(?<![^\n])", "start": r"\A"}


def text_of(marks, **options):
    """(parts, text) without these (mark, place)."""
    parts = Parts(None)
    text = TextGrammar(parts, **options)
    for mark, place in marks:
        text.forbid(mark, at_line=place == "line", at_start=place == "start")
    return parts, text


def compiled(parts, expr):
    root = parts.rules.new_rule("root")
    parts.rules.define(root, expr)
    return Grammar.from_rules(parts.rules, root)


def held(marks, text, expression=re.escape):
    return not any(re.search(PLACES[place] + expression(mark), text) for mark, place in marks)


@pytest.mark.parametrize("marks", [
    [("ab", "")], [("aab", ""), ("ba", "")], [("a", "line")], [("ab", "line"), ("b\n", "")], [("b", "start")],
    [("ab", "start"), ("ba", "line"), ("aaa", "")], [("\n\n", ""), ("b", "line")], [("a\na", "line"), ("a\nb", "")],
])  # fmt: skip
def test_texts_without_marks(marks):
    parts, text = text_of(marks)
    grammar = compiled(parts, text.expression())
    assert [t for t in TEXTS if grammar.accepts(t) is not held(marks, t)] == []


@pytest.mark.parametrize("marks", [[("a", "line")], [("ab", "start"), ("b", "line")]])
def test_spaces_at_the_beginning_leave_a_line(marks):
    parts, text = text_of(marks, fresh=True)
    grammar = compiled(parts, text.expression())
    wrong = [t for t in TEXTS if grammar.accepts(t) is not (held(marks, t) and held(marks, t.lstrip()))]
    assert wrong == []


PATTERNS = [
    (("a b",), r"a\s*b"),
    (("a ", Hole("number"), "b"), r"a\s*\d+b"),
    (("a", Hole("id")), r"a[\w.:-]"),
    ((" b",), r"\s*b"),
]


@pytest.mark.parametrize(("pattern", "expression"), PATTERNS)
def test_patterns_have_any_spaces_and_anything_in_holes(pattern, expression):
    parts, text = text_of([(pattern, "line")])
    grammar = compiled(parts, text.expression())
    digits = ["".join(t) for n in range(7) for t in itertools.product("ab1\n", repeat=n)]
    texts = digits if "\\d" in expression else TEXTS
    places = [(expression, "line")]
    assert [t for t in texts if grammar.accepts(t) is not held(places, t, lambda e: e)] == []


def test_what_follows_a_text():
    parts, text = text_of([("ab", ""), ("b", "line")])
    text.then(parts.text("ab!"))
    text.then(parts.text("b?"), at_line=True)
    grammar = compiled(parts, text.expression())
    marks = [("ab", ""), ("b", "line")]
    for t in TEXTS:
        assert grammar.accepts(f"{t}ab!") is held(marks, f"{t}a")
        follows = held(marks, t) and (not t or t.endswith("\n"))
        assert grammar.accepts(f"{t}b?") is (follows or held(marks, f"{t}b?"))
        assert not grammar.accepts(f"{t}ab!a")


@pytest.mark.parametrize("marks", [[("ab", "")], [("a", "line"), ("bb", "")], [("éb", ""), ("é", "line")]])
@pytest.mark.parametrize(("least", "most"), [(0, 3), (2, 2), (1, None), (3, 5), (0, 0), (4, None)])
def test_texts_of_a_length(marks, least, most):
    parts, text = text_of(marks)
    expr = text.sized(least, most)
    grammar = compiled(parts, parts.rules.seq((parts.text("<"), expr, parts.text(">"))))
    for t in ["".join(t) for n in range(6) for t in itertools.product("abé\n", repeat=n)]:
        fits = least <= len(t) and (most is None or len(t) <= most)
        assert grammar.accepts(f"<{t}>") is (fits and held(marks, t)), t


def test_lengths_that_take_too_many_states():
    _, text = text_of([("a mark of some length", "")])
    assert text.sized(0, 100) is not None
    assert text.sized(0, 100_000) is None
    assert text.sized(0, 5_000) is None


# ---- control tokens


def token(mark):
    return {"<a>": 1, "<b>": 2, "<e>": END}.get(mark)


def of_tokens(marks, **options):
    parts = Parts(token)
    text = TextGrammar(parts, **options)
    for mark, place in marks:
        text.forbid(mark, at_line=place == "line")
    return compiled(parts, text.expression())


def test_control_tokens_of_marks_and_others():
    grammar = of_tokens([("<a>", ""), ("x<b>y", "line"), ("z<e>", "")])
    for pieces, fits in (
        ([b"x", 1], False),
        ([b"x", 2, b"y"], False),
        ([b"x", 2, b"z"], True),
        ([b"w\n", b"x", 2, b"y"], False),
        ([b"wx", 2, b"y"], True),
        ([3, b"x", 2, b"y"], True),
        ([b"<a>x<b>y z<e>", 9], True),
    ):
        assert grammar.accepts(pieces) is fits, pieces


def test_spelled_control_tokens():
    grammar = of_tokens([("<a>", "")], spelled=True)
    assert not grammar.accepts("x<a>")
    assert grammar.accepts("x<b>")
    assert not grammar.accepts([b"x", 2])
