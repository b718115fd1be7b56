# cython: boundscheck=True, wraparound=True
"""Automata of patterns over characters, with empty moves: `PatternNfa`; and what several tell apart: `Basis`."""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

from oxillama.errors import GrammarError
from oxillama.grammar.regex import MAX_NFA

from oxillama.grammar.automata.vectors cimport Ints, drop, fill, push, sort
from oxillama.grammar.automata.budget cimport Budget
from oxillama.grammar.automata.char_table cimport EMPTY, START, STOP, CharTable, too_many_states

cdef enum:
    BEYOND_ASCII = 0x80
    FIRST_SURROGATE = 0xD800
    LAST_SURROGATE = 0xDFFF
    LAST_CHAR = 0x10FFFF

cdef Py_ssize_t MOST = MAX_NFA
cdef Py_ssize_t MOST_ADDED = 16 * MAX_NFA       # trees, of which empty ones add no state


cdef enum:
    EDGES_OF_A_UNIT = 64            # that are looked at in the time of a unit of the budget
    STATES_OF_A_UNIT = 512          # that are marked as not reached
    UNITS_AT_A_TIME = 1024


cdef object repeats_too_much():
    return GrammarError("it repeats too much to be combined with other conditions: repeat less")


cdef struct Walk:                   # of a text
    Ints before, states             # that it has led to, before and behind a character
    Ints mark                       # state -> the last step, by its stamp, that led to it
    int32_t stamp
    int64_t looked                  # edges that were looked at and not paid for


cdef class PatternNfa:
    """The automaton of a tree. sets: the sets of characters of its moves, as sorted ranges, each once. Some empty moves
    are valid at the start (^) or end ($) of the text only."""

    cdef readonly Py_ssize_t start, end
    cdef readonly list sets
    cdef dict places, seen          # of sets; seen: by identity, since repeats have the same one many times
    cdef Ints range_at, low, high   # set -> its ranges
    cdef Ints move, move_next, move_set, move_to        # state -> its first move; move -> the state's next one
    cdef Ints empty, empty_next, empty_kind, empty_to
    cdef Py_ssize_t n_added

    def __cinit__(self, node):
        self.sets, self.places, self.seen = [], {}, {}
        push(&self.range_at, 0)
        self.start = self.state()
        self.end = self.add(node, self.start)
        self.places = self.seen = None

    def __dealloc__(self):
        drop(&self.range_at)
        drop(&self.low)
        drop(&self.high)
        drop(&self.move)
        drop(&self.move_next)
        drop(&self.move_set)
        drop(&self.move_to)
        drop(&self.empty)
        drop(&self.empty_next)
        drop(&self.empty_kind)
        drop(&self.empty_to)

    @property
    def n_states(self):
        return self.move.n

    cdef Py_ssize_t state(self) except -1:
        if self.move.n >= MOST:
            raise repeats_too_much()
        push(&self.move, -1)
        push(&self.empty, -1)
        return self.move.n - 1

    cdef int empty_move(self, Py_ssize_t source, int kind, Py_ssize_t target) except -1:
        push(&self.empty_kind, kind)
        push(&self.empty_to, target)
        push(&self.empty_next, self.empty.at[source])
        self.empty.at[source] = self.empty_to.n - 1
        return 0

    cdef int set_move(self, Py_ssize_t source, tuple ranges, Py_ssize_t target) except -1:
        place = self.seen.get(<Py_ssize_t> <void *> ranges)
        if place is None:
            place = self.places.setdefault(ranges, len(self.sets))
            if place == len(self.sets):
                self.add_set(ranges)
            self.seen[<Py_ssize_t> <void *> ranges] = place
        push(&self.move_set, place)
        push(&self.move_to, target)
        push(&self.move_next, self.move.at[source])
        self.move.at[source] = self.move_to.n - 1
        return 0

    cdef int add_set(self, tuple ranges) except -1:
        cdef int32_t low, high
        self.sets.append(ranges)
        for low, high in ranges:
            push(&self.low, low)
            push(&self.high, high)
        return push(&self.range_at, self.low.n)

    cdef Py_ssize_t add(self, node, Py_ssize_t source) except -1:
        """Adds a tree after a state; returns the state after it."""
        cdef str kind = node.kind
        cdef Py_ssize_t target, here
        cdef bint passed = False
        self.n_added += 1
        if self.n_added > MOST_ADDED:
            raise repeats_too_much()
        if kind == "cat":
            for part in <tuple> node.parts:
                source = self.add(part, source)
            return source
        if kind == "repeat":
            return self.add_repeat(node, source)
        if kind == "ahead":
            raise GrammarError("looking ahead is supported only at the beginning of a pattern, after ^")
        target = self.state()
        if kind == "set":
            self.set_move(source, node.ranges, target)
        elif kind == "alt":
            for part in <tuple> node.parts:
                here = self.add(part, source)
                if here != source or not passed:    # of many empty alternatives, one
                    self.empty_move(here, EMPTY, target)
                passed |= here == source
        else:
            self.empty_move(source, START if kind == "^" else STOP, target)
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
            self.empty_move(source, EMPTY, here)
            self.empty_move(self.add(part, here), EMPTY, here)
            return here
        target = self.state()
        for _ in range(least, most):
            self.empty_move(source, EMPTY, target)
            here = self.state()
            self.empty_move(source, EMPTY, here)
            source = self.add(part, here)
        self.empty_move(source, EMPTY, target)
        return target

    def matches(self, str text not None, Budget budget=None):
        """Whether a text leads from the start to the end. budget: the work is subtracted from it."""
        cdef Walk walk
        memset(&walk, 0, sizeof(Walk))
        try:
            fill(&walk.mark, self.move.n, 0)
            return self.follow(&walk, text, budget)
        finally:
            drop(&walk.before)
            drop(&walk.states)
            drop(&walk.mark)

    cdef bint follow(self, Walk *walk, str text, Budget budget) except -1:
        cdef Py_ssize_t i, n = len(text)
        cdef int64_t work = self.move.n // STATES_OF_A_UNIT
        cdef bint found = False
        walk.stamp = 1
        self.reach(walk, self.start)
        for i in range(n):
            self.close(walk, i == 0, False)
            work += 2 + 2 * walk.states.n
            self.step(walk, text[i])
            if work + walk.looked // EDGES_OF_A_UNIT > UNITS_AT_A_TIME:
                self.pay(walk, work, text, budget)
                work = 0
            if not walk.states.n:
                break
        else:
            self.close(walk, n == 0, True)
            found = walk.mark.at[self.end] == walk.stamp
        self.pay(walk, work, text, budget)
        return found

    cdef int pay(self, Walk *walk, int64_t work, str text, Budget budget) except -1:
        work += walk.looked // EDGES_OF_A_UNIT
        walk.looked %= EDGES_OF_A_UNIT
        if budget is not None:
            budget.spend(work, f"a pattern that {text[:40]!r} is held against" if work > budget.left else "")
        return 0

    cdef int reach(self, Walk *walk, Py_ssize_t state) except -1:
        if walk.mark.at[state] != walk.stamp:
            walk.mark.at[state] = walk.stamp
            push(&walk.states, state)
        return 0

    cdef int close(self, Walk *walk, bint first, bint last) except -1:
        """Adds the states that empty moves lead to."""
        cdef Py_ssize_t i = 0
        cdef int32_t e, kind
        while i < walk.states.n:
            e = self.empty.at[walk.states.at[i]]
            while e >= 0:
                kind = self.empty_kind.at[e]
                if kind == EMPTY or (first if kind == START else last):
                    self.reach(walk, self.empty_to.at[e])
                e = self.empty_next.at[e]
                walk.looked += 1
            i += 1
        return 0

    cdef int step(self, Walk *walk, int32_t code) except -1:
        """The states behind a character in place of the closed ones before it."""
        cdef Py_ssize_t i
        cdef int32_t m
        cdef Ints closed = walk.states
        walk.states, walk.before = walk.before, closed
        walk.states.n = 0
        if walk.stamp == 0x7FFFFFFF:
            walk.stamp = walk.mark.n = 0
            fill(&walk.mark, self.move.n, 0)
        walk.stamp += 1
        for i in range(closed.n):
            m = self.move.at[closed.at[i]]
            while m >= 0:
                if self.has(self.move_set.at[m], code):
                    self.reach(walk, self.move_to.at[m])
                m = self.move_next.at[m]
                walk.looked += 1
        return 0

    cdef bint has(self, int32_t place, int32_t code) noexcept:
        """Whether a character is in a set: the last range that doesn't begin behind it has it."""
        cdef int32_t first = self.range_at.at[place], end = self.range_at.at[place + 1], middle
        while end - first > 1:
            middle = (first + end) // 2
            if self.low.at[middle] <= code:
                first = middle
            else:
                end = middle
        return first < end and self.low.at[first] <= code <= self.high.at[first]


cdef class Basis:
    """The automata of several trees, and the classes of characters that they tell apart.

    A class is the pieces between the places where a set begins or ends that are in the same sets. n_symbols: their
    number; n_pieces: how many pieces the sets have together; n_ranges: how many all classes have. Raises GrammarError
    if there are more than `most` pieces.
    """

    cdef readonly list nfas
    cdef readonly Py_ssize_t n_symbols, n_pieces
    cdef Py_ssize_t most
    cdef list sets, first_sets          # all sets; of each automaton the numbers of its own
    cdef Ints start, symbol             # of each piece; a last start is the end of all characters
    cdef Ints beyond                    # of each symbol: whether it has characters beyond ASCII
    cdef Ints part_at, part_first, part_end     # set -> its ranges as numbers of pieces
    cdef Ints covered_at, covered       # set -> its symbols
    cdef dict joined                    # what sets of symbols have beyond ASCII

    def __cinit__(self, list nfas not None, Py_ssize_t most):
        self.nfas, self.joined, self.most = nfas, {}, most
        self.list_sets()
        self.cut()
        self.place_sets()
        self.divide()
        self.cover()

    def __dealloc__(self):
        drop(&self.start)
        drop(&self.symbol)
        drop(&self.beyond)
        drop(&self.part_at)
        drop(&self.part_first)
        drop(&self.part_end)
        drop(&self.covered_at)
        drop(&self.covered)

    @property
    def n_ranges(self):
        return self.symbol.n

    cdef int list_sets(self) except -1:
        cdef PatternNfa nfa
        cdef dict places = {}
        self.first_sets = []
        for nfa in self.nfas:
            self.first_sets.append([places.setdefault(ranges, len(places)) for ranges in nfa.sets])
        self.sets = list(places)
        return 0

    cdef int cut(self) except -1:
        """Lists the starts of pieces in order."""
        cdef PatternNfa nfa
        cdef Py_ssize_t i, n = 0
        for i in (0, FIRST_SURROGATE, LAST_SURROGATE + 1, LAST_CHAR + 1):
            push(&self.start, i)
        for nfa in self.nfas:
            for i in range(nfa.low.n):
                push(&self.start, nfa.low.at[i])
                push(&self.start, nfa.high.at[i] + 1)
        sort(self.start.at, self.start.n)
        for i in range(self.start.n):
            if not n or self.start.at[n - 1] != self.start.at[i]:
                self.start.at[n] = self.start.at[i]
                n += 1
        self.start.n = n
        return 0

    cdef Py_ssize_t piece_at(self, int32_t code) noexcept:
        """The number of the piece that begins at a character."""
        cdef Py_ssize_t first = 0, end = self.start.n, middle
        while end - first > 1:
            middle = (first + end) // 2
            if self.start.at[middle] <= code:
                first = middle
            else:
                end = middle
        return first

    cdef int place_sets(self) except -1:
        cdef int32_t low, high
        self.n_pieces = self.start.n
        push(&self.part_at, 0)
        for ranges in self.sets:
            for low, high in <tuple> ranges:
                push(&self.part_first, self.piece_at(low))
                push(&self.part_end, self.piece_at(high + 1))
                self.n_pieces += self.part_end.at[self.part_end.n - 1] - self.part_first.at[self.part_first.n - 1]
            push(&self.part_at, self.part_end.n)
            if self.n_pieces > self.most:
                raise too_many_states()
        return 0

    cdef int divide(self) except -1:
        """Divides the pieces into classes: each set splits those that it has a part of. Classes are
        numbered in the order in which they are met."""
        cdef Ints last = Ints(NULL, 0, 0), following = Ints(NULL, 0, 0)     # of each class: the set that split it last
        cdef Py_ssize_t s, i, piece
        cdef int32_t old
        try:
            fill(&self.symbol, self.start.n - 1, 0)
            push(&last, -1)
            push(&following, 0)
            for s in range(self.part_at.n - 1):
                for i in range(self.part_at.at[s], self.part_at.at[s + 1]):
                    for piece in range(self.part_first.at[i], self.part_end.at[i]):
                        old = self.symbol.at[piece]
                        if last.at[old] != s:
                            last.at[old] = s
                            following.at[old] = last.n
                            push(&last, s)      # a piece that is in the set twice stays in the new class
                            push(&following, last.n - 1)
                        self.symbol.at[piece] = following.at[old]
            following.n = 0
            fill(&following, last.n, -1)
            for piece in range(self.symbol.n):
                old = self.symbol.at[piece]
                if following.at[old] < 0:
                    following.at[old] = self.n_symbols
                    self.n_symbols += 1
                self.symbol.at[piece] = following.at[old]
            fill(&self.beyond, self.n_symbols, 0)
            for piece in range(self.piece_at(BEYOND_ASCII), self.symbol.n):
                self.beyond.at[self.symbol.at[piece]] = 1
        finally:
            drop(&last)
            drop(&following)
        return 0

    cdef int cover(self) except -1:
        """Lists the symbols of each set."""
        cdef Ints met = Ints(NULL, 0, 0)
        cdef Py_ssize_t s, i, piece
        try:
            fill(&met, self.n_symbols, -1)
            push(&self.covered_at, 0)
            for s in range(self.part_at.n - 1):
                for i in range(self.part_at.at[s], self.part_at.at[s + 1]):
                    for piece in range(self.part_first.at[i], self.part_end.at[i]):
                        if met.at[self.symbol.at[piece]] != s:
                            met.at[self.symbol.at[piece]] = s
                            push(&self.covered, self.symbol.at[piece])
                push(&self.covered_at, self.covered.n)
        finally:
            drop(&met)
        return 0

    def add_to(self, CharTable table not None, list negated not None):
        """Makes the automata conditions of a table, each to be met, or not (`negated`)."""
        if table.n_symbols != self.n_symbols or len(negated) != len(self.nfas):
            raise ValueError("a table has as many symbols as its basis, and a sign for each automaton")
        for i, nfa in enumerate(self.nfas):
            self.add_one(table, nfa, self.first_sets[i], negated[i])

    cdef int add_one(self, CharTable table, PatternNfa nfa, list places, bint negated) except -1:
        cdef int32_t base = table.part.n, sets = table.covered_at.n - 1, m
        cdef Py_ssize_t state, i
        for place in places:
            for i in range(self.covered_at.at[place], self.covered_at.at[place + 1]):
                push(&table.covered, self.covered.at[i])
            push(&table.covered_at, table.covered.n)
        for state in range(nfa.move.n):
            push(&table.part, table.ends.n)
            m = nfa.move.at[state]
            while m >= 0:
                push(&table.move_set, sets + nfa.move_set.at[m])
                push(&table.move_to, base + nfa.move_to.at[m])
                m = nfa.move_next.at[m]
            push(&table.move_at, table.move_to.n)
            m = nfa.empty.at[state]
            while m >= 0:
                push(&table.empty_kind, nfa.empty_kind.at[m])
                push(&table.empty_to, base + nfa.empty_to.at[m])
                m = nfa.empty_next.at[m]
            push(&table.empty_at, table.empty_to.n)
        return table.end_condition(base + nfa.start, base + nfa.end, negated)

    # ---- characters of symbols

    def characters(self, tuple symbols not None):
        """The characters of a set of symbols: ranges in order, joined but where ASCII ends. Most sets of a table have
        the same ones beyond ASCII, which may be in hundreds of pieces: these are joined once."""
        cdef Ints chosen = Ints(NULL, 0, 0)
        cdef tuple key
        try:
            fill(&chosen, self.n_symbols, 0)
            for symbol in symbols:
                if not 0 <= symbol < self.n_symbols:
                    raise IndexError(f"there is no symbol {symbol}")
                chosen.at[<int32_t> symbol] = 1
            key = tuple([symbol for symbol in symbols if self.beyond.at[<int32_t> symbol]])
            beyond = self.joined.get(key)
            if beyond is None:
                beyond = self.joined[key] = self.ranges(&chosen, BEYOND_ASCII, LAST_CHAR + 1)
            return self.ranges(&chosen, 0, BEYOND_ASCII) + beyond
        finally:
            drop(&chosen)

    cdef tuple ranges(self, const Ints *chosen, int32_t least, int32_t end):
        """The characters of chosen symbols from one to another, without surrogates."""
        cdef list found = []
        cdef Py_ssize_t piece = self.piece_at(least)
        cdef int32_t low = -1, high = -1
        while piece < self.symbol.n and self.start.at[piece] < end:
            if chosen.at[self.symbol.at[piece]] and not FIRST_SURROGATE <= self.start.at[piece] <= LAST_SURROGATE:
                if high != self.start.at[piece]:
                    if low >= 0:
                        found.append((low, high - 1))
                    low = max(self.start.at[piece], least)
                high = min(self.start.at[piece + 1], end)
            piece += 1
        if low >= 0:
            found.append((low, high - 1))
        return tuple(found)
