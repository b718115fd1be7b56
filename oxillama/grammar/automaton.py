"""Rule sets and automata: the common form of all grammar notations.

`RuleSet` holds rules over bytes: sets of bytes or characters, sequences, alternatives, counted repeats, calls of rules,
tokens. A compiler for another notation (JSON schema) makes its expressions directly, without text in between::

    rules = RuleSet()
    value = rules.new_rule("value")
    digits = rules.repeat(rules.range(0x30, 0x39), 1)
    rules.define(value, rules.alt((digits, rules.seq((rules.literal(b"["), rules.rule(value), rules.literal(b"]"))))))
    grammar = Grammar.from_rules(rules, value)

Rules that are called from several places are compiled once, and their masks are shared between grammars; expressions
that are used several times are copied out. Small rules that can't lead back to themselves are copied into the loops
that call them, so that a text like a JSON string is followed by one automaton without a stack.
"""

from collections.abc import Iterable
from functools import lru_cache
from heapq import merge
from itertools import islice
from typing import TypeVar

from oxillama.grammar.automata.automaton import Automaton, NoTextError
from oxillama.grammar.automata.budget import Budget
from oxillama.grammar.automata.rules import Rules
from oxillama.grammar.automata.trie import TokenTrie

__all__ = [
    "MAX_CHAR",
    "Automaton",
    "Budget",
    "NoTextError",
    "Range",
    "RuleSet",
    "Sequence",
    "Vocabulary",
    "character_ranges",
    "in_order",
    "utf8_sequences",
]

RuleSet = Rules
Vocabulary = TokenTrie

Range = tuple[int, int]
T = TypeVar("T", str, Range)
Sequence = tuple[Range, ...]

MAX_CHAR = 0x10FFFF
SORTED = 1 << 12  # items that are sorted at once
SURROGATES = (0xD800, 0xDFFF)
# Code points of one to four bytes, by the last of each (RFC 3629).
_LAST = (0x7F, 0x7FF, 0xFFFF, MAX_CHAR)


def character_ranges(ranges: tuple[Range, ...], negated: bool = False) -> tuple[Range, ...]:
    """Sorted, merged ranges of code points without surrogates; `negated`: all other characters."""
    joined: list[Range] = []
    for low, high in in_order((*ranges, SURROGATES) if negated else ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    if not negated:
        return _without_surrogates(joined)
    starts = [0, *(high + 1 for _, high in joined)]
    ends = [*(low - 1 for low, _ in joined), MAX_CHAR]
    return tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


def in_order(items: Iterable[T]) -> Iterable[T]:
    """Items sorted, some at a time: other threads have their turns."""
    rest, parts = iter(items), []
    while part := sorted(islice(rest, SORTED)):
        parts.append(part)
    return parts[0] if len(parts) == 1 else merge(*parts)


def _without_surrogates(ranges: list[Range]) -> tuple[Range, ...]:
    out = []
    for low, high in ranges:
        if high < SURROGATES[0] or low > SURROGATES[1]:  # as most are
            out.append((low, high))
            continue
        if low < SURROGATES[0]:
            out.append((low, SURROGATES[0] - 1))
        if high > SURROGATES[1]:
            out.append((SURROGATES[1] + 1, high))
    return tuple(out)


def utf8_sequences(ranges: tuple[Range, ...], negated: bool = False) -> tuple[Sequence, ...]:
    """UTF-8 of a set of code points as sequences of byte ranges; `negated`: of all other characters."""
    return (_kept_sequences if len(ranges) <= SORTED else _utf8_sequences)(ranges, negated)


def _utf8_sequences(ranges: tuple[Range, ...], negated: bool) -> tuple[Sequence, ...]:
    found: list[Sequence] = []
    for low, high in character_ranges(ranges, negated):
        for last in _LAST:
            if low <= min(high, last):
                found += _sequences(chr(low).encode(), chr(min(high, last)).encode())
                low = last + 1
    return tuple(found)


_kept_sequences = lru_cache(maxsize=256)(_utf8_sequences)


def _sequences(low: bytes, high: bytes) -> list[Sequence]:
    """Byte strings of one length from low to high, in the order of UTF-8."""
    first, last = low[0], high[0]
    if len(low) == 1:
        return [((first, last),)]
    if first == last:
        return [((first, last), *rest) for rest in _sequences(low[1:], high[1:])]
    n = len(low) - 1
    out: list[Sequence] = []
    if low[1:] != b"\x80" * n:
        out += [((first, first), *rest) for rest in _sequences(low[1:], b"\xbf" * n)]
        first += 1
    tail: list[Sequence] = []
    if high[1:] != b"\xbf" * n:
        tail = [((last, last), *rest) for rest in _sequences(b"\x80" * n, high[1:])]
        last -= 1
    if first <= last:
        out.append(((first, last), *(((0x80, 0xBF),) * n)))
    return out + tail
