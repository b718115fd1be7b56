"""GBNF: the matches of each construct, and errors that point at the place."""

import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, utf8_sequences
from oxillama.grammar.automaton import character_ranges
from tests.grammar.cases import ERRORS, MATCHES, OTHERS

# llama.cpp's own cases (MIT); a list is token ids and text.
CASES = json.loads((Path(__file__).parents[1] / "data" / "grammar_cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["desc"])
def test_recorded_cases(case):
    grammar = Grammar.parse(case["source"])
    for text in case["passing"]:
        assert grammar.accepts(text), text
    for text in case["failing"]:
        assert not grammar.accepts(text), text


@pytest.mark.parametrize("case", [c for c in CASES if "tokens" in c["desc"]], ids=lambda c: c["desc"])
def test_tokens_may_be_written_into_a_text(case):
    grammar = Grammar.parse(case["source"])
    for text in [*case["passing"], *case["failing"]]:
        written = "".join(f"<[{piece}]>" if isinstance(piece, int) else piece for piece in text)
        assert grammar.accepts(written) == (text in case["passing"])


@pytest.mark.parametrize("body", MATCHES, ids=list(MATCHES))
def test_matches(body):
    grammar = Grammar.parse(f"{OTHERS}root ::= {body}")
    passing, failing = MATCHES[body]
    for text in passing:
        assert grammar.accepts(text), text
    for text in failing:
        assert not grammar.accepts(text), text


def test_layout():
    for text in (
        'root ::= a\na ::= "x"', 'a ::= "x"\r\nroot ::= a\r\n', '\n\n # c\nroot ::= \n a\n\n\na ::= "x" # c',
        '  root   ::=a\n\t a::="x"',
    ):  # fmt: skip
        assert Grammar.parse(text).accepts("x")
        assert not Grammar.parse(text).accepts("a")


@pytest.mark.parametrize("source", ERRORS, ids=list(ERRORS))
def test_errors_point_at_the_place(source):
    line, column, message = ERRORS[source]
    with pytest.raises(GrammarError, match=re.escape(message)) as caught:
        Grammar.parse(source)
    first, shown, caret = str(caught.value).split("\n")
    assert first.startswith(f"line {line}, column {column}: ")
    assert shown.strip() == (source.split("\n") or [""])[line - 1].strip()[:100]
    assert caret.index("^") == 1 + column


def test_a_long_line_is_shown_around_the_place():
    with pytest.raises(GrammarError, match="nothing before") as caught:
        Grammar.parse('root ::= "' + "a" * 1000 + '" | *')
    _, shown, caret = str(caught.value).split("\n")
    assert shown[caret.index("^")] == "*"
    assert len(shown) < 120


@pytest.mark.parametrize("text", [None, b'root ::= "a"', 3])
def test_a_grammar_is_text(text):
    with pytest.raises(GrammarError, match="must be a str"):
        Grammar.parse(text)


@pytest.mark.parametrize("text", [None, 3.5, [None], [True]])
def test_only_text_and_tokens_can_be_accepted(text):
    with pytest.raises((GrammarError, TypeError)):
        Grammar.parse('root ::= "a"').accepts(text)


def test_named_tokens():
    names = {"<think>": 7, "</think>": 8}
    grammar = Grammar.parse("root ::= <think> !</think>* </think>", token_id=names.get)
    assert grammar.accepts([7, "thinking", 9, 8])
    assert not grammar.accepts([7, "thinking", 8, 8])
    assert not grammar.accepts("<think></think>")
    with pytest.raises(GrammarError, match="no token <x>"):
        Grammar.parse("root ::= <x>", token_id=names.get)


def test_rules_that_never_match_are_left_out():
    grammar = Grammar.parse('root ::= "a" endless | "b" ("c" | endless)? | endless*\nendless ::= "x" endless')
    assert [t for t in ("", "a", "ax", "b", "bc", "bx", "x") if grammar.accepts(t)] == ["", "b", "bc"]
    with pytest.raises(GrammarError, match="'root' matches no text at all"):
        Grammar.parse('root ::= "a" root')


# ---- sets of characters


CHARS = st.integers(0, 0x10FFFF).filter(lambda c: not 0xD800 <= c <= 0xDFFF)
RANGES = st.lists(st.tuples(CHARS, CHARS).map(lambda p: (min(p), max(p))), min_size=1, max_size=4)


def matches(sequences, text):
    return any(
        len(s) == len(text) and all(low <= b <= high for (low, high), b in zip(s, text, strict=True)) for s in sequences
    )


@given(RANGES, st.booleans(), st.lists(CHARS, max_size=20))
@example([(0, 0x10FFFF)], False, [0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF])
@example([(0x800, 0xFFFF)], True, [0xD7FF, 0xE000, 0x7FF, 0x10000])
def test_utf8_sequences_are_the_set(ranges, negated, others):
    edges = [c + d for r in ranges for c in r for d in (-1, 0, 1) if 0 <= c + d <= 0x10FFFF]
    sequences = utf8_sequences(tuple(ranges), negated)
    for code in [*edges, *others]:
        if not 0xD800 <= code <= 0xDFFF:
            inside = any(low <= code <= high for low, high in ranges)
            assert matches(sequences, chr(code).encode()) == (inside != negated), hex(code)
    # Whatever the sequences match is UTF-8: their outermost members decode.
    for sequence in sequences:
        for pick in (0, 1):
            bytes(r[pick] for r in sequence).decode()


@given(RANGES)
def test_ranges_and_all_others_divide_the_characters(ranges):
    parts = sorted(character_ranges(tuple(ranges)) + character_ranges(tuple(ranges), True))
    assert sum(high - low + 1 for low, high in parts) == 0x110000 - 0x800
    assert all(a[1] < b[0] for a, b in itertools.pairwise(parts))


@settings(max_examples=300)
@given(st.text(alphabet='ro t:=|()[]{}*+?.,"^-\\!<>#\n0129abxu', max_size=60))
def test_any_text_parses_or_is_refused(text):
    for source in (text, 'root ::= "a" ' + text):
        try:
            grammar = Grammar.parse(source)
        except GrammarError:
            continue
        assert isinstance(grammar.accepts("ab"), bool)
