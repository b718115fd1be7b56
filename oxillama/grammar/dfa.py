"""Deterministic automata over characters, for intersections of sets of texts: `Dfa`."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import MAX_CHAR, SURROGATES, Budget, Range, RuleSet, character_ranges
from oxillama.grammar.pattern_nfa import PatternNfa
from oxillama.grammar.regex import Node
from oxillama.kernels.grammar_dfa import CharTable

__all__ = ["MAX_WORK", "WORK_UNITS", "Dfa", "Part", "is_empty", "matches"]

MAX_ASCII = 0x7F
SMALL = 512  # states of an automaton of which many are kept
MAX_WORK = 300_000
WORK_UNITS = 3  # units of the budget for one of `Dfa.work`


@dataclass(frozen=True, slots=True)
class Part:
    """One condition on a text: a tree matches all of it, or doesn't (`negated`)."""

    node: Node
    negated: bool = False


_small_nfa = lru_cache(maxsize=512)(PatternNfa)
_large_nfa = lru_cache(maxsize=32)(PatternNfa)


def _nfa_of(node: Node) -> PatternNfa:
    return (_small_nfa if node.n_states <= SMALL else _large_nfa)(node)


def matches(part: Part, text: str, budget: Budget | None = None) -> bool:
    """Whether a text meets a condition. budget: the work is subtracted from it."""
    nfa = _nfa_of(part.node)
    states = frozenset((nfa.start,))
    for i, c in enumerate(text):
        states, n_closed = nfa.step(states, i == 0, ord(c))
        if budget is not None:
            budget.spend(2 + 2 * n_closed, f"a pattern that {text[:40]!r} is held against")
        if not states:
            return part.negated
    return (nfa.end in nfa.closure(states, not text, True)) != part.negated


@lru_cache(maxsize=1024)
def is_empty(parts: tuple[Part, ...]) -> tuple[bool, int]:
    """Whether no text meets all conditions, and the work of the decision; False also if that was too much."""
    nodes = tuple([part.node for part in parts])
    try:
        # The choices of several patterns have the same automata with other signs.
        dfa = Dfa(parts, of=_kept_basis(nodes) if sum([node.n_states for node in nodes]) <= SMALL else None)
    except GrammarError:
        return False, MAX_WORK
    return not dfa.table.finals(), dfa.work


@dataclass(frozen=True, slots=True)
class _Basis:
    """The automata of several trees, and the classes of characters that they tell apart: `_alphabet`."""

    nfas: list[PatternNfa]
    alphabet: list[list[Range]]
    found: dict[int, tuple[int, ...]]
    n_pieces: int


def _basis(nodes: tuple[Node, ...], nfa: Callable[[Node], PatternNfa] = PatternNfa) -> _Basis:
    nfas = [nfa(node) for node in nodes]
    return _Basis(nfas, *_alphabet(nfas))


@lru_cache(maxsize=16)
def _kept_basis(nodes: tuple[Node, ...]) -> _Basis:
    return _basis(nodes, _nfa_of)


class Dfa:
    """The texts that meet all conditions and have `least` to `most` characters, as a table.

    alphabet: classes of equivalent characters. table: `CharTable`, whose state 0 is the start. work: what it took.
    Raises GrammarError if the construction takes more work than `limit`.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        least: int = 0,
        most: int | None = None,
        limit: int = MAX_WORK,
        of: _Basis | None = None,
    ) -> None:
        """of: the automata of the parts' trees, if they are known."""
        basis = _basis(tuple([part.node for part in parts])) if of is None else of
        self.alphabet = basis.alphabet
        work = sum([len(nfa.moves) for nfa in basis.nfas]) // 2 + basis.n_pieces // 4
        self.table = CharTable(len(self.alphabet), limit, work)
        for nfa, part in zip(basis.nfas, parts, strict=True):
            self.table.add(nfa.moves, nfa.empty, nfa.start, nfa.end, part.negated, basis.found)
        self.table.build(least, most)

    @property
    def work(self) -> int:
        return self.table.work

    def expr(self, rules: RuleSet, chars: Callable[[tuple[Range, ...]], int]) -> int:
        """The expression of the texts. chars: returns that of a set of characters."""
        edges = self.table.edges()
        characters = _Characters(self.alphabet)
        return self.table.graph(rules, [chars(characters.of(symbols)) for symbols in edges])


class _Characters:
    """The characters of sets of classes. Most sets of a table have the same ones beyond ASCII, which may be in hundreds
    of pieces: these are joined once."""

    def __init__(self, alphabet: list[list[Range]]) -> None:
        self.ascii = [[(low, min(high, MAX_ASCII)) for low, high in of if low <= MAX_ASCII] for of in alphabet]
        self.beyond = [[(max(low, MAX_ASCII + 1), high) for low, high in of if high > MAX_ASCII] for of in alphabet]
        self.joined: dict[tuple[int, ...], tuple[Range, ...]] = {}

    def of(self, symbols: tuple[int, ...]) -> tuple[Range, ...]:
        """Ranges in order, joined but where ASCII ends."""
        key = tuple([symbol for symbol in symbols if self.beyond[symbol]])
        joined = self.joined.get(key)
        if joined is None:
            joined = self.joined[key] = character_ranges(tuple([r for symbol in key for r in self.beyond[symbol]]))
        return character_ranges(tuple([r for symbol in symbols for r in self.ascii[symbol]])) + joined


def _alphabet(nfas: list[PatternNfa]) -> tuple[list[list[Range]], dict[int, tuple[int, ...]], int]:
    """Classes of characters (each a list of ranges), those that are in each set of the moves, by its `id`, and how many
    pieces were looked at to find them."""
    cuts = {0, SURROGATES[0], SURROGATES[1] + 1, MAX_CHAR + 1}
    # The states of a repeat share the ranges of one node, which may be hundreds (\p{L}): each is looked at once.
    sets = {id(r): r for nfa in nfas for moves in nfa.moves for r, _ in moves}
    for ranges in sets.values():
        for low, high in ranges:
            cuts.update((low, high + 1))
    starts = sorted(cuts)
    covered = {key: _pieces(ranges, starts) for key, ranges in sets.items()}
    met_by: list[list[int]] = [[] for _ in starts[1:]]
    for key, pieces in covered.items():
        for piece in pieces:
            met_by[piece].append(key)
    symbols: dict[tuple[int, ...], int] = {}
    symbol_of = [symbols.setdefault(tuple(keys), len(symbols)) for keys in met_by]
    alphabet: list[list[Range]] = [[] for _ in symbols]
    for symbol, (low, high) in zip(symbol_of, pairwise(starts), strict=True):
        alphabet[symbol].append((low, high - 1))
    found = {key: tuple(sorted({symbol_of[piece] for piece in pieces})) for key, pieces in covered.items()}
    return alphabet, found, len(starts) + sum(map(len, covered.values()))


def _pieces(ranges: tuple[Range, ...], starts: list[int]) -> list[int]:
    """Numbers of the pieces between starts that are in a set."""
    places = ((bisect_right(starts, low) - 1, bisect_right(starts, high)) for low, high in ranges)
    return [piece for first, end in places for piece in range(first, end)]
