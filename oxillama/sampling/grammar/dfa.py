"""Deterministic automata over characters, for sets of texts that are cut with each other: `Dfa`."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from oxillama.errors import GrammarError
from oxillama.sampling.grammar.automaton import MAX_CHAR, SURROGATES, Range
from oxillama.sampling.grammar.regex import Node

__all__ = ["END", "Dfa", "Part", "is_empty", "matches"]

State = tuple[tuple[frozenset[int], ...], int, bool]  # of each tree; characters so far; whether there are none
MAX_NFA = 20_000
MAX_WORK = 300_000
END = -1


@dataclass(frozen=True, slots=True)
class Part:
    """One condition on a text: that a tree matches all of it, or doesn't (`negated`)."""

    node: Node
    negated: bool = False


@dataclass(slots=True)
class _Nfa:
    """Moves on characters, empty moves, and empty moves that hold at the first (^) or last ($) place only."""

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
        """Puts a tree behind a state; returns the state after it."""
        if node.kind == "cat":
            for part in node.parts:
                source = self.add(part, source)
            return source
        if node.kind == "repeat":
            return self.add_repeat(node, source)
        if node.kind == "ahead":
            raise GrammarError("looking ahead is supported at the beginning of a pattern alone, after ^")
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


def matches(part: Part, text: str) -> bool:
    """Whether a text meets a condition."""
    nfa = _nfa_of(part.node)
    states = {nfa.start}
    for i, c in enumerate(text):
        code = ord(c)
        states = {
            target
            for state in nfa.closure(states, i == 0, False)
            for ranges, target in nfa.moves[state]
            if any(low <= code <= high for low, high in ranges)
        }
    return (nfa.end in nfa.closure(states, not text, True)) != part.negated


@lru_cache(maxsize=1024)
def is_empty(parts: tuple[Part, ...]) -> bool:
    """Whether no text meets all conditions; False also if that takes too much to tell."""
    try:
        return not Dfa(parts).finals
    except GrammarError:
        return False


class Dfa:
    """The texts that meet all conditions and have `least` to `most` characters, as a table.

    alphabet: sets of characters that nothing tells apart. rows[state][symbol]: the next state, or END for none.
    State 0 is the start; `finals` may end a text, and from `live` states an end can be reached.
    Raises GrammarError if that takes too much.
    """

    def __init__(self, parts: Sequence[Part], least: int = 0, most: int | None = None) -> None:
        self.parts = parts
        self.nfas = [_nfa(part.node) for part in parts]
        self.least, self.most = least, most
        self.alphabet, starts = _alphabet(self.nfas)
        self.symbols = [_symbols(nfa, starts) for nfa in self.nfas]
        self.rows: list[list[int]] = []
        self.finals: set[int] = set()
        self._explore()
        self.live = self._live()

    def _explore(self) -> None:
        start: State = (tuple(frozenset((nfa.start,)) for nfa in self.nfas), 0, True)
        known = {start: 0}
        todo = [start]
        work = 0
        for sets, length, first in todo:
            if self._is_final(sets, length, first):
                self.finals.add(len(self.rows))
            row = []
            closed = [nfa.closure(s, first, False) for nfa, s in zip(self.nfas, sets, strict=True)]
            work += sum(map(len, closed)) + len(self.alphabet)
            for target in self._targets(closed, length):
                if target is None:
                    row.append(END)
                    continue
                if target not in known:
                    known[target] = len(todo)
                    todo.append(target)
                row.append(known[target])
            self.rows.append(row)
            if work > MAX_WORK or len(known) > MAX_NFA:
                raise GrammarError("it needs too many states together with the other conditions: make it simpler")

    def _targets(self, closed: list[set[int]], length: int) -> Iterable["State | None"]:
        cap = self.least if self.most is None else self.most
        if self.most is not None and length >= self.most:
            return [None] * len(self.alphabet)
        moved = []
        for states, symbols in zip(closed, self.symbols, strict=True):
            row: list[set[int]] = [set() for _ in self.alphabet]
            for state in states:
                for symbol, target in symbols[state]:
                    row[symbol].add(target)
            moved.append([frozenset(s) for s in row])
        out = []
        for sets in zip(*moved, strict=True):
            dead = any(not s and not part.negated for s, part in zip(sets, self.parts, strict=True))
            out.append(None if dead else (sets, min(length + 1, cap), False))
        return out

    def _is_final(self, sets: tuple[frozenset[int], ...], length: int, first: bool) -> bool:
        return length >= self.least and all(
            (nfa.end in nfa.closure(s, first, True)) != part.negated
            for nfa, s, part in zip(self.nfas, sets, self.parts, strict=True)
        )

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


def _alphabet(nfas: list[_Nfa]) -> tuple[list[list[Range]], list[int]]:
    """Classes of characters (each a list of ranges), and where the pieces begin that they are made of."""
    cuts = {0, SURROGATES[0], SURROGATES[1] + 1, MAX_CHAR + 1}
    for nfa in nfas:
        for moves in nfa.moves:
            for ranges, _ in moves:
                for low, high in ranges:
                    cuts.update((low, high + 1))
    starts = sorted(cuts)
    return [[(low, high - 1)] for low, high in pairwise(starts)], starts


def _symbols(nfa: _Nfa, starts: list[int]) -> list[list[tuple[int, int]]]:
    return [
        [
            (symbol, target)
            for ranges, target in moves
            for low, high in ranges
            for symbol in range(bisect_right(starts, low) - 1, bisect_right(starts, high))
        ]
        for moves in nfa.moves
    ]
