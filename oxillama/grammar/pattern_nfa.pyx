# cython: boundscheck=True, wraparound=True
"""Automata of patterns over characters, with empty moves: `PatternNfa`."""

from oxillama.errors import GrammarError
from oxillama.grammar.regex import MAX_NFA

cdef enum:
    MAX_STEPS = 1024        # that an automaton keeps

cdef Py_ssize_t MOST = MAX_NFA
cdef Py_ssize_t MOST_ADDED = 16 * MAX_NFA       # trees, of which empty ones add no state


cdef object repeats_too_much():
    return GrammarError("it repeats too much to be combined with other conditions: repeat less")


cdef class PatternNfa:
    """The automaton of a tree. moves: of each state, on characters; empty: empty moves, of which some are valid at the
    start (^) or end ($) of the text only."""

    cdef readonly list moves, empty
    cdef readonly Py_ssize_t start, end
    cdef dict steps
    cdef Py_ssize_t n_added

    def __init__(self, node):
        self.moves, self.empty, self.steps, self.n_added = [], [], {}, 0
        self.start = self.state()
        self.end = self.add(node, self.start)

    cdef Py_ssize_t state(self) except -1:
        if len(self.moves) >= MOST:
            raise repeats_too_much()
        self.moves.append([])
        self.empty.append([])
        return len(self.moves) - 1

    cdef int empty_move(self, Py_ssize_t source, str kind, Py_ssize_t target) except -1:
        (<list> self.empty[source]).append((kind, target))
        return 0

    cdef Py_ssize_t add(self, node, Py_ssize_t source) except -1:
        """Adds a tree after a state; returns the state after it."""
        cdef str kind = node.kind
        cdef Py_ssize_t target
        self.n_added += 1
        if self.n_added > MOST_ADDED:
            raise repeats_too_much()
        if kind == "cat":
            for part in node.parts:
                source = self.add(part, source)
            return source
        if kind == "repeat":
            return self.add_repeat(node, source)
        if kind == "ahead":
            raise GrammarError("looking ahead is supported only at the beginning of a pattern, after ^")
        target = self.state()
        if kind == "set":
            (<list> self.moves[source]).append((node.ranges, target))
        elif kind == "alt":
            for part in node.parts:
                self.empty_move(self.add(part, source), "", target)
        else:
            self.empty_move(source, kind, target)
        return target

    cdef Py_ssize_t add_repeat(self, node, Py_ssize_t source) except -1:
        cdef Py_ssize_t target, here
        least, most = node.least, node.most
        if max(least, most or 0) > MOST:
            raise repeats_too_much()
        part = node.parts[0]
        for _ in range(least):
            source = self.add(part, source)
        if most is None:
            here = self.state()
            self.empty_move(source, "", here)
            self.empty_move(self.add(part, here), "", here)
            return here
        target = self.state()
        for _ in range(least, most):
            self.empty_move(source, "", target)
            here = self.state()
            self.empty_move(source, "", here)
            source = self.add(part, here)
        self.empty_move(source, "", target)
        return target

    def step(self, frozenset states not None, bint first, code):
        """The states behind a character, and how many it was looked up in; the last thousands of answers are kept."""
        cdef set closed
        found = self.steps.get((states, first, code))
        if found is None:
            closed = self.closure(states, first, False)
            targets = []
            for state in closed:
                for ranges, target in <list> self.moves[state]:
                    for low, high in ranges:
                        if low <= code <= high:
                            targets.append(target)
                            break
            if len(self.steps) >= MAX_STEPS:
                self.steps.clear()
            found = self.steps[states, first, code] = frozenset(targets), len(closed)
        return found

    cpdef set closure(self, states, bint first, bint last):
        """The states, and those that empty moves lead to."""
        cdef set found = set(states)
        cdef list todo = list(found)
        while todo:
            for kind, target in <list> self.empty[todo.pop()]:
                if target not in found and (kind == "" or (first if kind == "^" else last)):
                    found.add(target)
                    todo.append(target)
        return found
