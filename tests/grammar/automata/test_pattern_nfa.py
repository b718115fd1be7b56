"""Automata of patterns beside a naive twin: texts that match and what finding it takes, classes of characters."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar.automata.char_table import CharTable
from oxillama.grammar.automata.pattern_nfa import Basis, PatternNfa
from oxillama.grammar.automaton import Budget, character_ranges
from oxillama.grammar.regex import Node, parse_regex
from oxillama.grammar.regular import conditions
from tests.grammar.automata.naive_nfa import NaiveNfa, alphabet

PATTERNS = (
    "", "^$", "a", "^ab*c$", "(a|bc)*", "^(a|b){2,4}c?$", "a{3}", "^[^a]b$|c$", "\\d\\w\\s",
    "^\\p{L}+[\\u0080-\\uffff]$", "[\\u{d000}-\\u{10ffff}]b", ".", "(^a|b$)c*", "[\\x70-\\u0090]|é|[\\x00-\\x7f]",
    "[^\\S]", "^(?:a||b||||)*$", "^(?:" + "|".join(map(chr, range(0x4E00, 0x5300))) + "|b|a)*$",
    "^(?:" + "|".join(f"{x}?" for x in "abcdefgh" * 30) + ")*$", "^(?:ab?){700}$",
)  # fmt: skip
TEXTS = ("", "a", "b", "ab", "abc", "ac", "bcbc", "aabbc", "aaa", "ca", "1x ", "éé", "日b", "\n", "~", "\x80", "c" * 9)


def tree(pattern: str) -> Node:
    (part,) = conditions(parse_regex(pattern))
    return part.node


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_match_as_in_the_twin_for_the_same_work(pattern: str) -> None:
    fast, slow = PatternNfa(tree(pattern)), NaiveNfa(tree(pattern))
    assert (fast.n_states, fast.start, fast.end) == (len(slow.moves), slow.start, slow.end)
    for text in TEXTS:
        budget = Budget()
        expected, work = slow.matches(text)
        assert fast.matches(text) == fast.matches(text, budget) == expected
        assert budget.spent == work


def test_states_with_many_moves_are_paid_for() -> None:
    """Of one state with 9,000 moves; many empty alternatives are one."""
    letters = "|".join(map(chr, range(0x4E00, 0x4E00 + 9000)))
    nfa, budget = PatternNfa(tree(f"^(?:{letters}|a)*$")), Budget()
    assert nfa.matches("a" * 100, budget)
    assert budget.spent > 100 * 9000 // 64
    with pytest.raises(GrammarError, match="is held against is too large"):
        nfa.matches("a" * 1_000_000, budget)
    nfa, budget = PatternNfa(tree("^(?:a" + "|" * 9000 + ")*$")), Budget()
    assert nfa.matches("a" * 100, budget)
    assert budget.spent < 1500


def test_sets_with_too_many_pieces_are_refused_before_they_are_divided() -> None:
    nfa = PatternNfa(tree("^(?:" + "|".join(f"[^{chr(0x4E00 + i)}]" for i in range(3000)) + ")$"))
    with pytest.raises(GrammarError, match="too many states"):
        Basis([nfa], 100_000)


def test_a_table_of_other_conditions_is_refused() -> None:
    basis = Basis([PatternNfa(tree("ab"))], 1000)
    for table, negated in ((CharTable(1, 1000, 0), [False]), (CharTable(basis.n_symbols, 1000, 0), [])):
        with pytest.raises(ValueError, match="as many symbols"):
            basis.add_to(table, negated)


def test_threads_can_hold_texts_against_one_pattern() -> None:
    nfa, twin = PatternNfa(tree("(a|b)*a(a|b){30}c?")), NaiveNfa(tree("(a|b)*a(a|b){30}c?"))
    draw = random.Random(5)
    texts = ["".join(draw.choices("ab", k=draw.randint(20, 300))) + draw.choice(("", "c", "d")) for _ in range(40)]
    expected = [twin.matches(text)[0] for text in texts]
    assert 0 < sum(expected) < 40
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(lambda: [nfa.matches(text, Budget()) for text in texts]) for _ in range(4)]
        assert all(one.result() == expected for one in found)


def test_a_text_that_takes_too_much_is_refused_by_name() -> None:
    nfa = PatternNfa(tree("(a|b)*a(a|b){50}c"))
    with pytest.raises(GrammarError, match=r"a pattern that 'a{40}' is held against is too large"):
        nfa.matches("a" * 10_000, Budget(1000))


@pytest.mark.parametrize("seed", range(30))
def test_classes_of_characters_are_those_of_the_twin(seed: int) -> None:
    draw = random.Random(seed)
    trees = [tree(pattern) for pattern in draw.sample(PATTERNS, draw.randint(1, 4))]
    basis = Basis([PatternNfa(one) for one in trees], 1_000_000)
    classes, _, n_pieces = alphabet([NaiveNfa(one) for one in trees])
    assert (basis.n_symbols, basis.n_pieces, basis.n_ranges) == (len(classes), n_pieces, sum(map(len, classes)))
    for _ in range(20):
        symbols = tuple(sorted(draw.sample(range(len(classes)), draw.randint(0, len(classes)))))
        chosen = [r for symbol in symbols for r in classes[symbol]]
        ascii_ = character_ranges(tuple((low, min(high, 0x7F)) for low, high in chosen if low <= 0x7F))
        beyond = character_ranges(tuple((max(low, 0x80), high) for low, high in chosen if high >= 0x80))
        assert basis.characters(symbols) == ascii_ + beyond
    with pytest.raises(IndexError):
        basis.characters((len(classes),))


def test_equal_sets_are_kept_once() -> None:
    nfa = PatternNfa(tree("^[ab]x[a-b]xx[ab]{3}$"))
    assert nfa.sets == [((97, 98),), ((120, 120),)]
