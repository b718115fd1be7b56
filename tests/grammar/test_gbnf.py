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


MATCHES = {
    '"abc"': (["abc"], ["ab", "abcd", ""]),
    '""': ([""], ["a"]),
    "": ([""], ["a"]),
    '"a" |': (["a", ""], ["aa"]),
    '| "a"': (["a", ""], ["aa"]),
    '"a" | "b" "c"': (["a", "bc"], ["ac", "b", "abc"]),
    '("a" | "b") "c"': (["ac", "bc"], ["a", "c"]),
    '(\n "a" # comment ) \n | "b"\n)': (["a", "b"], [""]),
    '"a" # the rest is ignored | "b"': (["a"], ["b"]),
    '"a" |\n "b"': (["a", "b"], []),
    '"ab"*': (["", "ab", "abab"], ["a", "aba", "abb"]),
    '"a" "b"+': (["ab", "abb"], ["a", "abab"]),
    '"a"?"b"': (["ab", "b"], ["aab", "a"]),
    '"a"{2}': (["aa"], ["a", "aaa"]),
    '"a"{2,}': (["aa", "aaaaa"], ["a"]),
    '"a"{ 1 , 2 }': (["a", "aa"], ["", "aaa"]),
    '"a"{,2}': (["", "a", "aa"], ["aaa"]),
    '"a"{0}"b"': (["b"], ["ab"]),
    '"a"{0,0}': ([""], ["a"]),
    '"a"?*': (["", "aaa"], ["b"]),
    '("a"{2,3}){2}': (["aaaa", "aaaaa", "aaaaaa"], ["aaa", "aaaaaaa"]),
    '("a"{2}){0,2}': (["", "aa", "aaaa"], ["a", "aaa"]),
    '("a"?){2,3}': (["", "a", "aaa"], ["aaaa"]),
    "[abc]": (["a", "b", "c"], ["d", "ab", ""]),
    "[a-cx]": (["a", "b", "c", "x"], ["d", "-"]),
    "[^a-c]": (["d", "é", "\n", "\0", "\U0010ffff"], ["a", "b", "c", "", "dd"]),
    "[a-]": (["a", "-"], ["b"]),
    "[-a]": (["a", "-"], ["b"]),
    "[a\\-c]": (["a", "-", "c"], ["b"]),
    "[+--]": (["+", ",", "-"], ["."]),
    "[\\]\\[\\\\^]": (["]", "[", "\\", "^"], ["a"]),
    "[^^]": (["a"], ["^"]),
    ".": (["a", "\n", "é", "☃", "😀"], ["", "ab"]),
    ".*": (["", "any text\n at all ☃"], []),
    "[ぁ-ゟ]+": (["ひらがな"], ["カ", "a"]),
    "[a-\U0001f600]": (["a", "z", "é", "ÿ", "☃", "\uffff", "\U00010000", "\U0001f600"], ["A", "\U0001f601"]),
    '"\\x41\\u00e9\\U0001F600"': (["Aé😀"], ["A"]),
    '"\\t\\r\\n\\\\\\"\\[\\]"': (['\t\r\n\\"[]'], []),
    "[\\x00-\\x1F\\x7f]": (["\0", "\n", "\x1f", "\x7f"], [" "]),
    '"é"': (["é", b"\xc3\xa9"], [b"\xc3", b"\xe9"]),
    "[\\uD000-\\uF000]": (["\ud7ff", "\ue000"], ["\ud800".encode("utf-8", "surrogatepass")]),
    "under_score Dash-1": (["xy"], ["x"]),
}
OTHERS = 'under_score ::= "x"\nDash-1::="y"\n'


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


ERRORS = {
    "": (1, 1, "no rule 'root'"),
    'rot ::= "a"': (1, 12, "no rule 'root'"),
    "root ::= missing": (1, 10, "'missing' is not defined"),
    'root ::= "a"\nroot ::= "b"': (2, 1, "defined twice"),
    "root : x": (1, 6, "expected ::="),
    "root": (1, 5, "expected ::="),
    "root ::= \"a\" ) ": (1, 14, "expected an item"),
    'root ::= "a" $': (1, 14, "expected an item"),
    'root ::= "a"\n  | "b"': (2, 3, "name of a rule"),
    'root ::= x\nx ::= ("a"\n  "b"': (2, 7, "never closed"),
    'root ::= "a': (1, 10, "never closed"),
    'root ::= "a\\"': (1, 10, "never closed"),
    "root ::= [a": (1, 10, "never closed"),
    "root ::= []": (1, 10, "empty"),
    "root ::= [^]": (1, 10, "empty"),
    "root ::= [ z-a]": (1, 12, "backwards"),
    'root ::= "ab\\q"': (1, 13, "unknown escape"),
    'root ::= "\\x4"': (1, 11, "unknown escape"),
    'root ::= "\\U00110000"': (1, 11, "no character U+110000"),
    'root ::= "\\uD83D"': (1, 10, "surrogate"),
    "root ::= *": (1, 10, "nothing before"),
    'root ::= "a" | +': (1, 16, "nothing before"),
    "root ::= (?)": (1, 11, "nothing before"),
    'root ::= "a"{x}': (1, 13, "expected a count"),
    'root ::= "a"{}': (1, 13, "expected a count"),
    'root ::= "a"{,}': (1, 13, "expected a count"),
    'root ::= "a"{2': (1, 13, "expected a count"),
    'root ::= "a"{3,2}': (1, 13, "backwards"),
    'root ::= "a"{' + "9" * 19 + "}": (1, 13, "digits"),
    "root ::= <think>": (1, 10, "needs a vocabulary"),
    "root ::= <[x]": (1, 10, "expected a token"),
    "root ::= !x": (1, 10, "expected a token"),
    "root ::= <[9999999999]>": (1, 10, "outside any vocabulary"),
}  # fmt: skip


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


@settings(deadline=None)
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


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='ro t:=|()[]{}*+?.,"^-\\!<>#\n0129abxu', max_size=60))
def test_any_text_parses_or_is_refused(text):
    for source in (text, 'root ::= "a" ' + text):
        try:
            grammar = Grammar.parse(source)
        except GrammarError:
            continue
        assert isinstance(grammar.accepts("ab"), bool)
