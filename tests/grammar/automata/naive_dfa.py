"""Deterministic automata over characters as plain Python data: what `CharTable` makes, state by state."""

from oxillama.errors import GrammarError
from oxillama.grammar.automata.dfa import MAX_WORK
from oxillama.grammar.regex import MAX_NFA
from tests.grammar.automata.naive_nfa import NaiveNfa, alphabet

END = -1
MAX_MERGED = 256


class NaiveDfa:
    """The texts that meet all conditions and have `least` to `most` characters, as a table.

    alphabet: classes of equivalent characters. rows[state][symbol]: the next state, or END for none. State 0 is the
    start; `finals` may end a text, and from `live` states an end can be reached.
    Raises GrammarError if the construction takes more work than `limit`.
    """

    def __init__(self, parts, least=0, most=None, limit=MAX_WORK):
        self.parts = parts
        self.nfas = [NaiveNfa(part.node) for part in parts]
        self.least, self.most, self.limit = least, most, limit
        self.alphabet, found, n_pieces = alphabet(self.nfas)
        self.symbols = [_symbols(nfa, found) for nfa in self.nfas]
        self.rows = []
        self.finals = set()
        self.work = sum(len(nfa.moves) for nfa in self.nfas) // 2 + n_pieces // 4
        self._explore()
        if least or most is not None:
            self._count()
        self.live = self._live()

    def _explore(self):
        """The table without regard to lengths."""
        start = (tuple(frozenset((nfa.start,)) for nfa in self.nfas), True)
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

    def _moves(self, closed):
        """Number of moves on single symbols. One takes far less time than a state."""
        return sum(
            len(covered)
            for states, symbols in zip(closed, self.symbols, strict=True)
            for state in states
            for covered, _ in symbols[state]
        )

    def _spend(self, work, n_states):
        self.work += work
        if self.work > self.limit or n_states > MAX_NFA:
            raise GrammarError("it needs too many states together with the other conditions: make it simpler")

    def _targets(self, closed):
        moved = []
        for states, symbols in zip(closed, self.symbols, strict=True):
            row = [set() for _ in self.alphabet]
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

    def _is_final(self, sets, first):
        return all(
            (nfa.end in nfa.closure(s, first, True)) != part.negated
            for nfa, s, part in zip(self.nfas, sets, self.parts, strict=True)
        )

    def _count(self):
        """Splits the states by the number of characters read, as far as the lengths need it."""
        rows, finals, live = self._merged(), self.finals, self._live()
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

    def _merged(self):
        """The rows of few states, with the first of all states that the same texts follow in place of any of them."""
        live = self._live()
        if len(self.rows) > MAX_MERGED:
            return self.rows
        first = {state: min(s for s in live if (s in self.finals) == (state in self.finals)) for state in live}
        n_classes, n_before = 0, -1
        while n_classes != n_before:
            self._spend(1 + len(self.rows) * len(self.alphabet) // 32, len(self.rows))
            kinds = {state: (first[state], *(first.get(target) for target in self.rows[state])) for state in live}
            first = {state: min(s for s in live if kinds[s] == kinds[state]) for state in live}
            n_classes, n_before = len(set(first.values())), n_classes
        return [[first.get(target, END) for target in row] for row in self.rows]

    def _live(self):
        sources = [[] for _ in self.rows]
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


def _symbols(nfa, found):
    """The moves of each state, on numbers of classes of characters."""
    return [[(found[ranges], target) for ranges, target in moves] for moves in nfa.moves]
