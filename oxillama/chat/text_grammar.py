"""Grammars of texts without some marks: the automaton of Aho and Corasick (1975) over bytes and control tokens."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from oxillama.chat.grammar_parts import END, Parts
from oxillama.chat.openings import SPACES
from oxillama.chat.patterns import Hole, Pattern

__all__ = ["TextGrammar"]

LINE_BREAK = 10
TOKEN = 0x110000  # a symbol from here on is a control token, one below is a byte or a character
MAX_STATES = 20_000  # of a text that is held to a length
_SPACES = frozenset(SPACES.encode())
_DIGITS = frozenset(b"0123456789")
_WORD = frozenset((*b"-.:_", *_DIGITS, *range(0x41, 0x5B), *range(0x61, 0x7B), *range(0x80, 0x100)))
# Text, a control token, or what stands in a hole, once at least; spaces need not be there.
_Piece = str | int | frozenset[int]


@dataclass(slots=True, eq=False)
class _Node:
    """A place in the tree of marks: what follows, and whether a mark is complete. loop: of what stands in a hole or
    between words, any number of times, each kind with the place behind it."""

    after: "dict[int, list[_Node]]" = field(default_factory=dict)
    loops: "dict[frozenset[int], _Node]" = field(default_factory=dict)
    complete: bool = False

    def child(self, symbol: int) -> "_Node":
        """The place behind a symbol that comes once."""
        found = [node for node in self.after.get(symbol, ()) if node not in self.loops.values()]
        return found[0] if found else self.link(symbol, _Node())

    def link(self, symbol: int, node: "_Node") -> "_Node":
        self.after.setdefault(symbol, []).append(node)
        return node

    def loop(self, symbols: frozenset[int]) -> "_Node":
        """The place behind any number of these symbols, at least one."""
        if symbols not in self.loops:
            node = self.loops[symbols] = _Node()
            for symbol in symbols:
                self.link(symbol, node)
                node.link(symbol, node)
        return self.loops[symbols]


# A state of a text: whether only spaces have come so far, and the marks that have begun.
_State = tuple[bool, tuple[_Node, ...]]
_OTHER: _State = (False, ())
_Edge = tuple[int, int, int]


class TextGrammar:
    """Any text without some marks, and what may follow it.

    Control tokens may stand in the text, if there are any, but for those that complete a mark.
    """

    def __init__(self, parts: Parts, *, fresh: bool = False, spelled: bool = False) -> None:
        """fresh: spaces at the text's beginning don't count, so that a line begins behind them as well. spelled: the
        text has no control tokens, and their texts are marks as well."""
        self._parts, self._fresh, self._spelled = parts, fresh, spelled
        self._marks: dict[tuple[str, str | Pattern], list[_Piece]] = {}
        self._follows: list[tuple[int, bool]] = []

    def forbid(self, mark: str | Pattern, *, at_line: bool = False, at_start: bool = False) -> None:
        """A mark that must not come: anywhere; where a line or the text begins; or at the text's beginning alone.

        A pattern is one with any spaces between its words, and with anything in its holes.
        """
        pieces = list(self._literal(mark) if isinstance(mark, str) else self._pieces(mark))
        if TOKEN + END not in pieces:  # which comes where a text may end, and nowhere else
            self._marks["line" if at_line else "start" if at_start else "", mark] = pieces

    def _literal(self, text: str) -> Iterator[_Piece]:
        for part, token in [(text, None)] if self._spelled else self._parts.pieces(text):
            yield part if token is None else TOKEN + token

    def _pieces(self, pattern: Pattern) -> Iterator[_Piece]:
        for number, part in enumerate(pattern):
            if isinstance(part, Hole):
                yield _DIGITS if part.kind == "number" else _WORD
                continue
            words = part.split()
            for i, word in enumerate(words):
                if i or part[:1].isspace():
                    yield _SPACES
                yield from self._literal(word)
            if part[-1:].isspace() and number < len(pattern) - 1:
                yield _SPACES

    def then(self, expr: int, *, at_line: bool = False) -> None:
        """An expression that may follow the text; at_line: only where a line, or the text, begins."""
        self._follows.append((expr, at_line))

    def expression(self) -> int:
        """The grammar of the text, and perhaps of one of those that may follow it."""
        tree = _Tree(self._parts, self._marks, self._fresh, self._parts.has_tokens and not self._spelled)
        states, edges = tree.states(), tree.edges
        end = len(states)
        for source, state in enumerate(states):
            begins = tree.at_line in state[1]
            edges += [(source, expr, end) for expr, at_line in self._follows if begins or not at_line]
        return self._parts.rules.graph(end + 1, edges, range(end + 1))

    def sized(self, least: int, most: int | None) -> int | None:
        """The text with so many characters; None if that takes too many states."""
        counted = least if most is None else most
        size = sum(len(piece) for pieces in self._marks.values() for piece in pieces if isinstance(piece, str))
        if counted > MAX_STATES or size > MAX_STATES:
            return None
        tree = _Tree(self._parts, self._marks, self._fresh, False, as_bytes=False)
        n = len(tree.states())
        if n * (counted + 1) > MAX_STATES:
            return None
        edges = [
            (source + i * n, expr, target + min(i + 1, counted) * n)
            for i in range(counted + (most is None))
            for source, expr, target in tree.edges
        ]
        return self._parts.rules.graph(n * (counted + 1), edges, range(n * least, n * (counted + 1)))


class _Tree:
    """The tree of marks, and the states of a text that follows it: over bytes, or over characters."""

    def __init__(
        self,
        parts: Parts,
        marks: "dict[tuple[str, str | Pattern], list[_Piece]]",
        fresh: bool,
        has_tokens: bool,
        *,
        as_bytes: bool = True,
    ) -> None:
        self._parts, self._rules, self._fresh, self._as_bytes = parts, parts.rules, fresh, as_bytes
        self._anywhere, self.at_line, self._at_start = _Node(), _Node(), _Node()
        self._ones: dict[int, int] = {}
        self._others: dict[tuple[int, ...], int] = {}
        self._has_tokens = has_tokens
        self.edges: list[_Edge] = []
        roots = {"": self._anywhere, "line": self.at_line, "start": self._at_start}
        for (place, _), pieces in marks.items():
            self._plant(roots[place], pieces)

    def _plant(self, root: _Node, pieces: list[_Piece]) -> None:
        """Adds a mark to a tree."""
        ends = [root]  # where its pieces may end so far
        for piece in pieces:
            if isinstance(piece, frozenset):
                loop = _joined(ends, ends[0].loop(piece), piece)
                ends = [*ends, loop] if piece is _SPACES else [loop]
                continue
            for symbol in (piece,) if isinstance(piece, int) else piece.encode() if self._as_bytes else map(ord, piece):
                ends = [_joined(ends, ends[0].child(symbol), (symbol,))]
        ends[0].complete = True

    def states(self) -> list[_State]:
        """The states of a text, the first one first; `edges` are those between them then."""
        states: dict[_State, int] = {(self._fresh, (self.at_line, self._at_start)): 0}
        todo = list(states)
        for source, state in enumerate(todo):  # which grows
            for expr, target in self._edges(state):
                if target not in states:
                    states[target] = len(states)
                    todo.append(target)
                self.edges.append((source, expr, states[target]))
        return todo

    def _edges(self, state: _State) -> Iterator[tuple[int, _State]]:
        """(expression, next state) of every way on."""
        fresh, nodes = state
        symbols = {LINE_BREAK} | _SPACES if fresh else {LINE_BREAK}
        symbols = symbols.union(self._anywhere.after, *(node.after for node in nodes))
        told = sorted(symbol for symbol in symbols if symbol < TOKEN)
        yield self._other(tuple(told)), _OTHER
        for symbol in told:
            after = self._step(state, symbol)
            if after is not None:
                yield self._one(symbol), after
        if self._has_tokens:
            tokens = sorted(symbol - TOKEN for symbol in symbols if symbol >= TOKEN)
            yield self._rules.control(tokens), _OTHER
            for token in tokens:
                after = self._step(state, TOKEN + token)
                if after is not None:
                    yield self._rules.token(token), after

    def _other(self, told: tuple[int, ...]) -> int:
        """Any symbol but these."""
        found = self._others.get(told)
        if found is None:
            if self._as_bytes:
                ends = [(low + 1, high - 1) for low, high in itertools.pairwise((-1, *told, 256)) if low + 1 < high]
                found = self._rules.alt([self._rules.range(low, high) for low, high in ends])
            else:
                found = self._parts.characters(tuple((symbol, symbol) for symbol in told), True)
            self._others[told] = found
        return found

    def _one(self, symbol: int) -> int:
        found = self._ones.get(symbol)
        if found is None:
            plain = self._as_bytes or symbol < 0x80
            found = self._rules.range(symbol, symbol) if plain else self._parts.characters(((symbol, symbol),))
            self._ones[symbol] = found
        return found

    def _step(self, state: _State, symbol: int) -> _State | None:
        """The state behind a symbol; None where it completes a mark."""
        fresh, nodes = state
        found = {after for node in nodes for after in node.after.get(symbol, ())}
        found.update(self._anywhere.after.get(symbol, ()))
        for node in found:
            if node.complete:
                return None
        fresh = fresh and symbol in _SPACES
        if symbol == LINE_BREAK or fresh:
            found.add(self.at_line)
        if fresh:
            found.add(self._at_start)
        return fresh, tuple(sorted(found, key=id)) if len(found) > 1 else tuple(found)


def _joined(ends: list[_Node], node: _Node, symbols: Iterable[int]) -> _Node:
    """A place that these symbols lead to from all ends."""
    for end in ends[1:]:
        for symbol in symbols:
            if node not in end.after.get(symbol, ()):
                end.link(symbol, node)
    return node
