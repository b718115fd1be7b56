"""`CharTable`: the deterministic automaton, over classes of characters, of texts that meet several conditions at once.

The automata of all conditions stand side by side, with states of their own, and a state of the table is a set of these
states: the subset construction (Rabin and Scott 1959) makes the intersection, too. Limits on the number of characters
split the states by it. Work is counted, and the same work whatever the machine does it with.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcmp

from oxillama.errors import GrammarError
from oxillama.grammar.automata.rules cimport Rules
from oxillama.grammar.automata.vectors cimport Ints, drop, fill, forget, get, mixed, push, put, sort

cdef enum:
    NOWHERE = -1
    MAX_STATES = 20000
    MAX_LENGTH = 1 << 30        # longer than any text that so many states can tell apart
    MAX_MERGED = 256            # states of a table that equal ones are looked for in


cdef object too_many_states():
    return GrammarError("it needs too many states together with the other conditions: make it simpler")


cdef class CharTable:
    """Conditions, added one by one, and then their table. n_symbols: of classes of characters; limit: of the work;
    work: that was done before."""

    def __init__(self, int n_symbols, limit, work):
        self.n_symbols = n_symbols
        self.limit, self.work = limit, work
        push(&self.move_at, 0)
        push(&self.empty_at, 0)
        push(&self.covered_at, 0)

    def __dealloc__(self):
        cdef Ints *vectors = &self.part
        cdef Py_ssize_t i
        for i in range(N_VECTORS):
            drop(vectors + i)
        forget(&self.known)

    cdef int end_condition(self, int32_t start, int32_t end, bint negated) except -1:
        """Ends a condition, whose states, moves and sets of characters were added to the lists of all."""
        push(&self.starts, start)
        push(&self.ends, end)
        push(&self.negated, negated)
        fill(&self.mark, self.part.n, 0)
        fill(&self.last_mark, self.part.n, 0)
        return 0

    def build(self, least, most):
        """Makes the table, for texts of `least` to `most` characters. Raises GrammarError if that takes too much."""
        self.explore()
        if least or most is not None:
            self.find_live()
            self.merge()
            self.count(min(least, MAX_LENGTH), -1 if most is None else min(most, MAX_LENGTH))
        self.find_live()

    cdef int spend(self, int64_t work, int64_t n_states) except -1:
        self.work += work
        if self.work > self.limit or n_states > MAX_STATES:
            raise too_many_states()
        return 0

    # ---- sets of states

    cdef int close(self, Ints *states, Ints *mark, bint first, bint last) except -1:
        """Adds what empty moves lead to. Members are marked."""
        cdef Py_ssize_t i = 0, e
        cdef int32_t kind, to
        self.stamp += 1
        for e in range(states.n):
            mark.at[states.at[e]] = self.stamp
        while i < states.n:
            for e in range(self.empty_at.at[states.at[i]], self.empty_at.at[states.at[i] + 1]):
                kind, to = self.empty_kind.at[e], self.empty_to.at[e]
                if mark.at[to] != self.stamp and (kind == EMPTY or (first if kind == START else last)):
                    mark.at[to] = self.stamp
                    push(states, to)
            i += 1
        return 0

    cdef int load(self, int32_t state, Ints *out) except -1:
        cdef Py_ssize_t i
        out.n = 0
        for i in range(self.set_at.at[state], self.set_at.at[state + 1]):
            push(out, self.members.at[i])
        return 0

    cdef int32_t intern(self, Ints *states) except -2:
        """The number of a set, a new one if it is new; NOWHERE if a condition can't be met any more."""
        cdef uint64_t key = 0x9E3779B97F4A7C15
        cdef Py_ssize_t i, at, n = states.n
        cdef int32_t found
        self.present.n = 0
        fill(&self.present, self.ends.n, 0)
        for i in range(n):
            self.present.at[self.part.at[states.at[i]]] = 1
        for i in range(self.ends.n):
            if not self.present.at[i] and not self.negated.at[i]:
                return NOWHERE
        sort(states.at, n)
        for i in range(n):
            key = mixed(key ^ <uint64_t> (states.at[i] + 1))
        key |= 1
        while True:
            found = get(&self.known, key)
            if found < 0:
                break
            at = self.set_at.at[found]
            if self.set_at.at[found + 1] - at == n and (
                n == 0 or not memcmp(self.members.at + at, states.at, n * sizeof(int32_t))
            ):
                return found
            key += 2
        put(&self.known, key, self.set_at.n - 1)
        for i in range(n):
            push(&self.members, states.at[i])
        push(&self.set_at, self.members.n)
        return self.set_at.n - 2

    # ---- the table without regard to lengths

    cdef int explore(self) except -1:
        cdef int32_t state = 0
        cdef Py_ssize_t i
        push(&self.set_at, 0)
        for i in range(self.starts.n):          # the start is no set that a character leads to
            push(&self.members, self.starts.at[i])
        push(&self.set_at, self.members.n)
        while state < self.set_at.n - 1:
            self.load(state, &self.closed)
            self.close(&self.closed, &self.last_mark, state == 0, True)
            push(&self.final, self.is_final())
            self.load(state, &self.closed)
            self.close(&self.closed, &self.mark, state == 0, False)
            self.spend(self.closed.n + self.n_symbols + self.gather() // 50, self.set_at.n - 1)
            self.leave()
            state += 1
        return 0

    cdef bint is_final(self) noexcept:
        """Whether a text may end in the states that were closed last."""
        cdef Py_ssize_t i
        for i in range(self.ends.n):
            if (self.last_mark.at[self.ends.at[i]] == self.stamp) == self.negated.at[i]:
                return False
        return True

    cdef int64_t gather(self) except -1:
        """Lists the targets of the closed states by symbol. Returns the number of moves on single symbols."""
        cdef Py_ssize_t i, m, c
        cdef int32_t symbol
        cdef int64_t n_moves = 0
        self.first.n = self.listed.n = 0
        fill(&self.first, self.n_symbols, -1)
        for i in range(self.closed.n):
            for m in range(self.move_at.at[self.closed.at[i]], self.move_at.at[self.closed.at[i] + 1]):
                for c in range(
                    self.covered_at.at[self.move_set.at[m]], self.covered_at.at[self.move_set.at[m] + 1]
                ):
                    symbol = self.covered.at[c]
                    push(&self.listed, self.move_to.at[m])
                    push(&self.listed, self.first.at[symbol])
                    self.first.at[symbol] = self.listed.n - 2
                    n_moves += 1
        return n_moves

    cdef int leave(self) except -1:
        """The row of one state. Most symbols have the targets of another one."""
        cdef int32_t symbol, at, same
        self.sets.n = 0                         # symbols with different targets, each with its set
        for symbol in range(self.n_symbols):
            at = self.first.at[symbol]
            same = 0
            while same < self.sets.n and not self.is_alike(at, self.first.at[self.sets.at[same]]):
                same += 2
            if same < self.sets.n:
                push(&self.table, self.sets.at[same + 1])
                continue
            self.stamp += 1
            self.targets.n = 0
            while at >= 0:
                if self.mark.at[self.listed.at[at]] != self.stamp:
                    self.mark.at[self.listed.at[at]] = self.stamp
                    push(&self.targets, self.listed.at[at])
                at = self.listed.at[at + 1]
            push(&self.sets, symbol)
            push(&self.sets, self.intern(&self.targets))
            push(&self.table, self.sets.at[self.sets.n - 1])
        return 0

    cdef bint is_alike(self, int32_t a, int32_t b) noexcept:
        """Whether two lists of targets are equal."""
        while a >= 0 and b >= 0 and self.listed.at[a] == self.listed.at[b]:
            a, b = self.listed.at[a + 1], self.listed.at[b + 1]
        return a == b                           # -1, the end of both

    cdef int find_live(self) except -1:
        """Marks the states that an end can be reached from."""
        cdef int32_t n = self.final.n
        cdef int32_t state, at
        cdef Py_ssize_t i
        self.first.n = self.listed.n = self.targets.n = self.live.n = 0
        fill(&self.first, n, -1)
        fill(&self.live, n, 0)
        for i in range(self.table.n):
            state = self.table.at[i]
            if state >= 0 and (i % self.n_symbols == 0 or self.table.at[i - 1] != state):
                push(&self.listed, i // self.n_symbols)
                push(&self.listed, self.first.at[state])
                self.first.at[state] = self.listed.n - 2
        for state in range(n):
            if self.final.at[state]:
                self.live.at[state] = 1
                push(&self.targets, state)
        while self.targets.n:
            self.targets.n -= 1
            at = self.first.at[self.targets.at[self.targets.n]]
            while at >= 0:
                state = self.listed.at[at]
                if not self.live.at[state]:
                    self.live.at[state] = 1
                    push(&self.targets, state)
                at = self.listed.at[at + 1]
        return 0

    # ---- lengths

    cdef int merge(self) except -1:
        """Leads the moves of a table of few states to the first of those that the same texts follow (Moore 1956): each
        is about to be split by the number of characters. Needs `live`."""
        cdef int32_t n = self.final.n
        cdef int32_t state, n_before = -1
        cdef Py_ssize_t i
        if n > MAX_MERGED:
            return 0
        self.first.n = self.listed.n = 0        # of each state: its class
        fill(&self.listed, n, 0)
        for state in range(n):
            push(&self.first, self.final.at[state])
        self.targets.n = 0                      # of each class: its first state
        while self.targets.n != n_before:
            self.spend(1 + n * self.n_symbols // 32, n)
            n_before = self.targets.n
            self.targets.n = 0
            forget(&self.known)
            for state in range(n):
                if self.live.at[state]:
                    self.listed.at[state] = self.class_of(state)
            self.first, self.listed = self.listed, self.first
        for i in range(self.table.n):
            if self.alive_at(i) >= 0:
                self.table.at[i] = self.targets.at[self.alive_at(i)]
        return 0

    cdef int32_t alive_at(self, Py_ssize_t i) noexcept:
        """The class of a target, NOWHERE for one that leads to no end."""
        cdef int32_t target = self.table.at[i]
        return self.first.at[target] if target >= 0 and self.live.at[target] else NOWHERE

    cdef int32_t class_of(self, int32_t state) except -1:
        """The class of a state among those of this round: of the same class so far, with targets of the same."""
        cdef Py_ssize_t i, n = self.n_symbols
        cdef uint64_t key = mixed(<uint64_t> (self.first.at[state] + 2))
        cdef int32_t found, other
        for i in range(n):
            key += mixed(<uint64_t> (self.alive_at(state * n + i) + 2) | <uint64_t> i << 32)
        key |= 1
        while True:
            found = get(&self.known, key)
            if found < 0:
                put(&self.known, key, self.targets.n)
                push(&self.targets, state)
                return self.targets.n - 1
            other = self.targets.at[found]
            i = 0 if self.first.at[other] == self.first.at[state] else n + 1
            while i < n and self.alive_at(other * n + i) == self.alive_at(state * n + i):
                i += 1
            if i == n:
                return found
            key += 2

    cdef int count(self, int32_t least, int32_t most) except -1:
        """Splits the states by the number of characters read, as far as the lengths need it. most: -1 for any."""
        cdef Ints table = self.table, final = self.final
        cdef Ints todo = Ints(NULL, 0, 0)           # state, length: lengths never fall
        cdef int32_t cap = least if most < 0 else most
        cdef int32_t state, length, target
        cdef Py_ssize_t at = 0, i
        self.table = self.final = Ints(NULL, 0, 0)
        self.targets.n = self.first.n = 0           # of each state: its last number, and the length there
        fill(&self.targets, final.n, NOWHERE)
        fill(&self.first, final.n, NOWHERE)
        try:
            self.number(&todo, 0, 0)
            while at < todo.n:
                state, length = todo.at[at], todo.at[at + 1]
                at += 2
                push(&self.final, final.at[state] and length >= least)
                self.spend(1 + self.n_symbols // 4, todo.n // 2)
                for i in range(state * self.n_symbols, (state + 1) * self.n_symbols):
                    target = table.at[i]
                    if target < 0 or not self.live.at[target] or (most >= 0 and length >= most):
                        push(&self.table, NOWHERE)
                    else:
                        push(&self.table, self.number(&todo, target, min(length + 1, cap)))
        finally:
            drop(&table)
            drop(&final)
            drop(&todo)
        return 0

    cdef int32_t number(self, Ints *todo, int32_t state, int32_t length) except -1:
        """The number of a state behind so many characters, a new one if it is new."""
        if self.first.at[state] != length:
            self.first.at[state] = length
            self.targets.at[state] = todo.n // 2
            push(todo, state)
            push(todo, length)
        return self.targets.at[state]

    # ---- what others see

    @property
    def n_states(self):
        return self.final.n

    def rows(self):
        """Table by state and symbol of the next state, -1 for none."""
        cdef Py_ssize_t i, k, n = self.n_symbols
        return [[self.table.at[i * n + k] for k in range(n)] for i in range(self.final.n)]

    def finals(self):
        """The states in which a text may end."""
        return [i for i in range(self.final.n) if self.final.at[i]]

    def alive(self):
        """The states that an end can be reached from."""
        return [i for i in range(self.live.n) if self.live.at[i]]

    def edges(self):
        """Brings the moves of each state to one target together. Returns their sets of symbols, each once, for `graph`.
        """
        cdef int32_t state
        cdef dict places = {}
        cdef list shapes = []       # of each way to divide the symbols, the places of its sets
        cdef list shape
        cdef Py_ssize_t k
        self.mark.n = self.edge.n = self.members.n = 0
        forget(&self.known)
        fill(&self.mark, self.final.n, -1)
        for state in range(self.final.n):
            k = self.division(state)
            if k == len(shapes):
                shapes.append(self.divided(places))
            shape = <list> shapes[k]
            for k in range(self.targets.n):
                push(&self.edge, state)
                push(&self.edge, shape[k])
                push(&self.edge, self.targets.at[k])
        return list(places)

    cdef int32_t division(self, int32_t state) except -1:
        """The number of the way in which a state's targets divide the symbols; the targets by their first symbols."""
        cdef Py_ssize_t n = self.n_symbols
        cdef Py_ssize_t i, at = self.members.n
        cdef uint64_t key = 0x9E3779B97F4A7C15
        cdef int32_t target, found
        self.targets.n = 0
        for i in range(n):
            target = self.table.at[state * n + i]
            if target >= 0 and self.live.at[target]:
                if self.mark.at[target] < 0:
                    self.mark.at[target] = self.targets.n
                    push(&self.targets, target)
                target = self.mark.at[target]
            else:
                target = -1
            push(&self.members, target)
            key += mixed(<uint64_t> (target + 2) | <uint64_t> i << 32)  # of a sum, no part waits for another
        for i in range(self.targets.n):
            self.mark.at[self.targets.at[i]] = -1
        key |= 1
        while True:
            found = get(&self.known, key)
            if found < 0:
                put(&self.known, key, at // n)
                return at // n
            if not memcmp(self.members.at + found * n, self.members.at + at, n * sizeof(int32_t)):
                self.members.n = at
                return found
            key += 2

    cdef list divided(self, dict places):
        """The places of the sets of the division that was noted last; new sets get new ones."""
        cdef Py_ssize_t i, n = self.n_symbols
        cdef int32_t group
        sets = [[] for _ in range(self.targets.n)]
        for i in range(n):
            group = self.members.at[self.members.n - n + i]
            if group >= 0:
                (<list> sets[group]).append(i)
        return [places.setdefault(tuple(symbols), len(places)) for symbols in sets]

    def graph(self, Rules rules not None, list exprs not None):
        """The expression of the table's texts. exprs: of each of the sets that `edges` returned."""
        cdef Ints expr_of = Ints(NULL, 0, 0)
        cdef Py_ssize_t i
        cdef int32_t expr
        try:
            for expr in exprs:
                rules.check(expr)
                push(&expr_of, expr)
            for i in range(1, self.edge.n, 3):
                if self.edge.at[i] >= expr_of.n:
                    raise IndexError(f"there are {expr_of.n} expressions of sets of symbols: more are needed")
            for i in range(1, self.edge.n, 3):
                self.edge.at[i] = expr_of.at[self.edge.at[i]]
            return rules.table(&self.edge, &self.final)
        finally:
            drop(&expr_of)
            self.edge.n = 0
