"""Deterministic automata over characters, for intersections of sets of texts: `Dfa`."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from oxillama.errors import GrammarError
from oxillama.grammar.automata.char_table import CharTable
from oxillama.grammar.automata.pattern_nfa import Basis, PatternNfa
from oxillama.grammar.automaton import Budget, Range, RuleSet
from oxillama.grammar.regex import Node

__all__ = ["MAX_WORK", "WORK_UNITS", "Dfa", "Part", "is_empty", "matches"]

SMALL = 512  # states of an automaton of which many are kept
MAX_WORK = 300_000
WORK_UNITS = 3  # units of the budget for one of `Dfa.work`
PIECES = 4  # of sets of characters, for one of `Dfa.work`


class Part(NamedTuple):
    """One condition on a text: a tree matches all of it, or doesn't (`negated`)."""

    node: Node
    negated: bool = False


_small_nfa = lru_cache(maxsize=512)(PatternNfa)
_large_nfa = lru_cache(maxsize=32)(PatternNfa)


def _nfa_of(node: Node) -> PatternNfa:
    return (_small_nfa if node.n_states <= SMALL else _large_nfa)(node)


def matches(part: Part, text: str, budget: Budget | None = None) -> bool:
    """Whether a text meets a condition. budget: the work is subtracted from it."""
    return _nfa_of(part.node).matches(text, budget) != part.negated


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


@lru_cache(maxsize=16)
def _kept_basis(nodes: tuple[Node, ...]) -> Basis:
    return Basis([_nfa_of(node) for node in nodes], PIECES * MAX_WORK)


class Dfa:
    """The texts that meet all conditions and have `least` to `most` characters, as a table.

    basis: the classes of equivalent characters. table: `CharTable`, whose state 0 is the start. work: what it took.
    Raises GrammarError if the construction takes more work than `limit`.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        least: int = 0,
        most: int | None = None,
        limit: int = MAX_WORK,
        of: Basis | None = None,
    ) -> None:
        """of: the automata of the parts' trees, if they are known."""
        self.basis = Basis([PatternNfa(part.node) for part in parts], PIECES * limit) if of is None else of
        work = sum([nfa.n_states for nfa in self.basis.nfas]) // 2 + self.basis.n_pieces // PIECES
        self.table = CharTable(self.basis.n_symbols, limit, work)
        self.basis.add_to(self.table, [part.negated for part in parts])
        self.table.build(least, most)

    @property
    def work(self) -> int:
        return self.table.work

    def expr(self, rules: RuleSet, chars: Callable[[tuple[Range, ...]], int]) -> int:
        """The expression of the texts. chars: returns that of a set of characters."""
        return self.table.graph(rules, [chars(self.basis.characters(symbols)) for symbols in self.table.edges()])
