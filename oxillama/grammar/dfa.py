"""Deterministic automata over characters, for intersections of sets of texts: `Dfa`."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import MAX_CHAR, SURROGATES, Budget, Range
from oxillama.grammar.regex import Node

__all__ = ["END", "MAX_WORK", "WORK_UNITS", "Dfa", "Part", "is_empty", "matches", "n_states"]

State = tuple[tuple[frozenset[int], ...], bool]  # NFA states of each tree; whether no character was read
MAX_NFA = 20_000
MAX_WORK = 300_000
WORK_UNITS = 3  # units of the budget for one of `Dfa.work`
END = -1


@dataclass(frozen=True, slots=True)
class Part:
    """One condition on a text: a tree matches all of it, or doesn't (`negated`)."""

    node: Node
    negated: bool = False


@dataclass(slots=True)
class _Nfa:
    """Moves on characters, empty moves, and empty moves that are valid at the start (^) or end ($) of the text only."""

    moves: list[list[tuple[tuple[Range, ...], int]]] = field(default_factory=list)
    empty: list[list[tuple[str, int]]] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def state(self) -> int:
        if len(self.moves) >= MAX_NFA:
            raise GrammarError("it repeats too much to be combined with other conditions: repeat less")
        self.moves.append([])
        self.empty.append([])
        return len(self.moves) - 1

    def add(self, node: Node, source: int) -> int:
        """Adds a tree after a state; returns the state after it."""
        if node.kind == "cat":
            for part in node.parts:
                source = self.add(part, source)
            return source
        if node.kind == "repeat":
            return self.add_repeat(node, source)
        if node.kind == "ahead":
            raise GrammarError("looking ahead is supported only at the beginning of a pattern, after ^")
        target = self.state()
        if node.kind == "set":
            self.moves[source].append((node.ranges, target))
        elif node.kind == "alt":
            for part in node.parts:
                self.empty[self.add(part, source)].append(("", target))
        else:
            self.empty[source].append((node.kind, target))
        return target

    def add_repeat(self, node: Node, source: int) -> int:
        if max(node.least, node.most or 0) > MAX_NFA:
            raise GrammarError("it repeats too much to be combined with other conditions: repeat less")
        for _ in range(node.least):
            source = self.add(node.parts[0], source)
        if node.most is None:
            loop = self.state()
            self.empty[source].append(("", loop))
            self.empty[self.add(node.parts[0], loop)].append(("", loop))
            return loop
        target = self.state()
        for _ in range(node.least, node.most):
            self.empty[source].append(("", target))
            here = self.state()
            self.empty[source].append(("", here))
            source = self.add(node.parts[0], here)
        self.empty[source].append(("", target))
        return target

    def closure(self, states: Iterable[int], first: bool, last: bool) -> set[int]:
        found = set(states)
        todo = list(found)
        while todo:
            for kind, target in self.empty[todo.pop()]:
                if target not in found and (kind == "" or (first if kind == "^" else last)):
                    found.add(target)
                    todo.append(target)
        return found


def _nfa(node: Node) -> _Nfa:
    nfa = _Nfa()
    nfa.start = nfa.state()
    nfa.end = nfa.add(node, nfa.start)
    return nfa


_nfa_of = lru_cache(maxsize=512)(_nfa)


@lru_cache(maxsize=4096)
def n_states(node: Node) -> int:
    """Approximate number of states of a tree's automaton; at most one above the limit."""
    inner = sum(map(n_states, node.parts))
    if node.kind == "repeat":
        inner = (inner + 1) * max(node.least, node.most or node.least + 1)
    return min(inner + 1, MAX_NFA + 1)


def matches(part: Part, text: str, budget: Budget | None = None) -> bool:
    """Whether a text meets a condition. budget: the work is subtracted from it."""
    nfa = _nfa_of(part.node)
    states = {nfa.start}
    for i, c in enumerate(text):
        code = ord(c)
        closed = nfa.closure(states, i == 0, False)
        if budget is not None:
            budget.spend(2 + 2 * len(closed), f"a pattern that {text[:40]!r} is held against")
        states = {
            target
            for state in closed
            for ranges, target in nfa.moves[state]
            if any(low <= code <= high for low, high in ranges)
        }
    return (nfa.end in nfa.closure(states, not text, True)) != part.negated


@lru_cache(maxsize=1024)
def is_empty(parts: tuple[Part, ...]) -> tuple[bool, int]:
    """Whether no text meets all conditions, and the work of the decision; False also if that was too much."""
    try:
        dfa = Dfa(parts)
    except GrammarError:
        return False, MAX_WORK
    return not dfa.finals, dfa.work


class Dfa:
    """The texts that meet all conditions and have `least` to `most` characters, as a table.

    alphabet: classes of equivalent characters. rows[state][symbol]: the next state, or END for none. State 0 is the
    start; `finals` may end a text, and from `live` states an end can be reached.
    Raises GrammarError if the construction takes more work than `limit`.
    """

    def __init__(self, parts: Sequence[Part], least: int = 0, most: int | None = None, limit: int = MAX_WORK) -> None:
        self.parts = parts
        self.nfas = [_nfa(part.node) for part in parts]
        self.least, self.most, self.limit = least, most, limit
        self.alphabet, found, n_pieces = _alphabet(self.nfas)
        self.symbols = [_symbols(nfa, found) for nfa in self.nfas]
        self.rows: list[list[int]] = []
        self.finals: set[int] = set()
        self.work = sum(len(nfa.moves) for nfa in self.nfas) // 2 + n_pieces // 4
        self._explore()
        if least or most is not None:
            self._count()
        self.live = self._live()

    def _explore(self) -> None:
        """The table without regard to lengths."""
        start: State = (tuple(frozenset((nfa.start,)) for nfa in self.nfas), True)
        known = {start: 0}
        todo = [start]
        for sets, first in todo:
            if self._is_final(sets, first):
                self.finals.add(len(self.rows))
            row = []
            closed = [nfa.closure(s, first, False) for nfa, s in zip(self.nfas, sets, strict=True)]
            self._spend(sum(map(len, closed)) + len(self.alphabet) + self._moves(closed) // 50, len(known))
            for target in self._targets(closed):
                if target is None:
                    row.append(END)
                    continue
                if target not in known:
                    known[target] = len(todo)
                    todo.append(target)
                row.append(known[target])
            self.rows.append(row)

    def _moves(self, closed: list[set[int]]) -> int:
        """Number of moves on single symbols. One takes far less time than a state."""
        return sum(
            len(covered)
            for states, symbols in zip(closed, self.symbols, strict=True)
            for state in states
            for covered, _ in symbols[state]
        )

    def _spend(self, work: int, n_states: int) -> None:
        self.work += work
        if self.work > self.limit or n_states > MAX_NFA:
            raise GrammarError("it needs too many states together with the other conditions: make it simpler")

    def _targets(self, closed: list[set[int]]) -> Iterable["State | None"]:
        moved = []
        for states, symbols in zip(closed, self.symbols, strict=True):
            row: list[set[int]] = [set() for _ in self.alphabet]
            for state in states:
                for covered, target in symbols[state]:
                    for symbol in covered:
                        row[symbol].add(target)
            moved.append([frozenset(s) for s in row])
        out = []
        for sets in zip(*moved, strict=True):
            dead = any(not s and not part.negated for s, part in zip(sets, self.parts, strict=True))
            out.append(None if dead else (sets, False))
        return out

    def _is_final(self, sets: tuple[frozenset[int], ...], first: bool) -> bool:
        return all(
            (nfa.end in nfa.closure(s, first, True)) != part.negated
            for nfa, s, part in zip(self.nfas, sets, self.parts, strict=True)
        )

    def _count(self) -> None:
        """Splits the states by the number of characters read, as far as the lengths need it."""
        rows, finals, live = self.rows, self.finals, self._live()
        cap = self.least if self.most is None else self.most
        self.rows, self.finals = [], set()
        known = {(0, 0): 0}
        todo = [(0, 0)]
        for state, length in todo:
            if state in finals and length >= self.least:
                self.finals.add(len(self.rows))
            self._spend(1 + len(self.alphabet) // 4, len(known))
            row = []
            for target in rows[state] if self.most is None or length < self.most else ():
                if target not in live:
                    row.append(END)
                    continue
                to = (target, min(length + 1, cap))
                number = known.setdefault(to, len(todo))
                if number == len(todo):
                    todo.append(to)
                row.append(number)
            self.rows.append(row or [END] * len(self.alphabet))

    def _live(self) -> set[int]:
        sources: list[list[int]] = [[] for _ in self.rows]
        for source, row in enumerate(self.rows):
            for target in set(row) - {END}:
                sources[target].append(source)
        live = set(self.finals)
        todo = list(live)
        while todo:
            for source in sources[todo.pop()]:
                if source not in live:
                    live.add(source)
                    todo.append(source)
        return live


def _alphabet(nfas: list[_Nfa]) -> tuple[list[list[Range]], dict[int, tuple[int, ...]], int]:
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


def _symbols(nfa: _Nfa, found: dict[int, tuple[int, ...]]) -> list[list[tuple[tuple[int, ...], int]]]:
    """The moves of each state, on numbers of classes of characters."""
    return [[(found[id(ranges)], target) for ranges, target in moves] for moves in nfa.moves]
