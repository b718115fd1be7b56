"""Automata of patterns as plain Python data, and the classes of characters that several tell apart: what `PatternNfa`
and `Basis` make."""

from itertools import pairwise

from oxillama.grammar.automaton import MAX_CHAR, SURROGATES


class NaiveNfa:
    """moves: of each state, on sets of characters; empty: empty moves, of kind "", "^" or "$"."""

    def __init__(self, node):
        self.moves, self.empty = [], []
        self.start = self._state()
        self.end = self._add(node, self.start)

    def _state(self):
        self.moves.append([])
        self.empty.append([])
        return len(self.moves) - 1

    def _add(self, node, source):
        """Adds a tree after a state; returns the state after it."""
        if node.kind == "cat":
            for part in node.parts:
                source = self._add(part, source)
            return source
        if node.kind == "repeat":
            return self._add_repeat(node, source)
        target = self._state()
        if node.kind == "set":
            self.moves[source].append((node.ranges, target))
        elif node.kind == "alt":
            for here in dict.fromkeys(self._add(part, source) for part in node.parts):
                self.empty[here].append(("", target))
        else:
            self.empty[source].append((node.kind, target))
        return target

    def _add_repeat(self, node, source):
        (part,) = node.parts
        for _ in range(node.least):
            source = self._add(part, source)
        if node.most is None:
            here = self._state()
            self.empty[source].append(("", here))
            self.empty[self._add(part, here)].append(("", here))
            return here
        target = self._state()
        for _ in range(node.least, node.most):
            here = self._state()
            self.empty[source] += [("", target), ("", here)]
            source = self._add(part, here)
        self.empty[source].append(("", target))
        return target

    def matches(self, text):
        """Whether a text leads from the start to the end, and the work of finding that."""
        states, work, looked = {self.start}, len(self.moves) // 512, 0
        for i, c in enumerate(text):
            closed = self.closure(states, i == 0, False)
            work += 2 + 2 * len(closed)
            moves = [move for state in closed for move in self.moves[state]]
            looked += len(moves) + sum(len(self.empty[state]) for state in closed)
            states = {target for ranges, target in moves if any(low <= ord(c) <= high for low, high in ranges)}
            if not states:
                return False, work + looked // 64
        closed = self.closure(states, not text, True)
        looked += sum(len(self.empty[state]) for state in closed)
        return self.end in closed, work + looked // 64

    def closure(self, states, first, last):
        """The states, and those that empty moves lead to."""
        found, todo = set(states), list(states)
        while todo:
            for kind, target in self.empty[todo.pop()]:
                if target not in found and (kind == "" or (first if kind == "^" else last)):
                    found.add(target)
                    todo.append(target)
        return found


def alphabet(nfas):
    """Classes of characters (each a list of ranges), those that are in each set of the moves, and how many pieces were
    looked at to find them."""
    sets = dict.fromkeys(ranges for nfa in nfas for moves in nfa.moves for ranges, _ in moves)
    cuts = {0, SURROGATES[0], SURROGATES[1] + 1, MAX_CHAR + 1}
    for ranges in sets:
        cuts |= {end for low, high in ranges for end in (low, high + 1)}
    starts = sorted(cuts)
    symbols, classes = {}, []
    found = {ranges: set() for ranges in sets}
    n_pieces = len(starts)
    for low, end in pairwise(starts):
        key = tuple(ranges for ranges in sets if any(a <= low <= b for a, b in ranges))
        symbol = symbols.setdefault(key, len(symbols))
        if symbol == len(classes):
            classes.append([])
        classes[symbol].append((low, end - 1))
        n_pieces += len(key)
        for ranges in key:
            found[ranges].add(symbol)
    return classes, found, n_pieces
