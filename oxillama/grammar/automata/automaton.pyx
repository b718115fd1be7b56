"""`Automaton`: what a grammar is compiled to. One deterministic automaton per rule, whose edges may call other rules.

States are made from sets of states of the `Nfa` (subset construction). A rule for which that would cost much more than
it has states, which takes a grammar made for it, keeps the sets of one state each: several edges then match a byte, and
the parser follows all of them.

The state that a rule starts in is never final: a rule that is called takes at least one byte.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memset

from oxillama.errors import GrammarError
from oxillama.grammar.automata.left_recursion cimport LeftRecursion
from oxillama.grammar.automata.nfa cimport BYTES, CALL, EPS, NO_TEXT, NOT_TOKEN, ONE_TOKEN, TAKEN, Nfa
from oxillama.grammar.automata.rules cimport Rules
from oxillama.grammar.automata.turns cimport give_way, turn
from oxillama.grammar.automata.vectors cimport Ints, drop, fill, forget, get, mixed, push, put, reserve, sort

cdef extern from *:
    int trailing_zeros "__builtin_ctzll"(uint64_t word) noexcept nogil

cdef enum:
    MAX_STATES = 2000000
    MAX_EDGES = 8000000
    MAX_SETS = 16000000         # members of all sets of one rule
    STATES_PER_TURN = 512
    RULES_PER_TURN = 32
    FEW = 16                    # values that are looked through
    LARGE = 1 << 20             # integers that take a while to be freed
    MANY = 4096                 # states of a set that other threads need not wait for
    MAX_WORK = 1 << 23          # members of sets and edges looked at, beside some for each state


cdef int append(Ints *to, const Ints *other, int32_t base, int32_t sign) except -1:
    """Adds base + sign x for each x."""
    cdef Py_ssize_t i
    reserve(to, to.n + other.n)
    for i in range(other.n):
        to.at[to.n + i] = base + sign * other.at[i]
        turn(i)
    to.n += other.n
    return 0


cdef inline void mark_cut(uint64_t *cut, int at) noexcept nogil:
    cut[at >> 6] |= <uint64_t> 1 << (at & 63)


cdef inline int next_cut(const uint64_t *cut, int at) noexcept nogil:
    """The first marked place from `at` on. One is: 256, the last."""
    cdef int word = at >> 6
    cdef uint64_t left = cut[word] >> (at & 63)
    if left:
        return at + trailing_zeros(left)
    word += 1
    while not cut[word]:
        word += 1
    return (word << 6) + trailing_zeros(cut[word])


cdef object too_large():
    return GrammarError(
        f"the grammar is too large: it needs more than {MAX_STATES} states, or too many moves between them. Repeat "
        "less, or make groups of rules that begin with each other smaller"
    )


class NoTextError(GrammarError):
    """A grammar that matches nothing at all."""


cdef class Automaton:
    """Compiled rules. Raises GrammarError if they match nothing at all, or need too many states."""

    def __init__(self, Rules rules not None, int32_t root):
        if not 0 <= root < rules.body.n:
            raise IndexError(f"there is no rule {root}")
        self.nfa = Nfa(rules, root)
        self.left = LeftRecursion(self.nfa)
        if not self.nfa.fruitful.at[root]:
            raise NoTextError(
                f"the rule {rules.names[root]!r} matches no text at all: every way through it needs a rule that never "
                "ends, or an empty set"
            )
        self.nullable = self.nfa.nullable.at[root]
        try:
            self.nfa.settle()
            self.most = rules.budget.left
            self.build(root)
            rules.budget.spend(self.cost(), "the grammar")
        finally:
            self.nfa = self.left = None
            self.drop_work()

    cdef int drop_work(self) noexcept:
        """Frees what was needed to build it; a hundred megabytes take milliseconds."""
        cdef Ints *work[13]
        cdef Ints *one
        work[:] = [
            &self.rule_start, &self.set_at, &self.sets, &self.mark, &self.kernel, &self.ranges, &self.targets,
            &self.important, &self.silent_at, &self.silent, &self.pieces, &self.alone, &self.single,
        ]
        for one in work:
            if one.room > LARGE:
                give_way()
            drop(one)
        forget(&self.known)
        return 0

    def __dealloc__(self):
        self.drop_work()
        drop(&self.final)
        drop(&self.edge_at)
        drop(&self.edge_range)
        drop(&self.edge_to)
        drop(&self.call_at)
        drop(&self.call_start)
        drop(&self.call_to)
        drop(&self.token_at)
        drop(&self.token)
        drop(&self.token_to)
        drop(&self.item)
        drop(&self.item_first)

    @property
    def n_states(self):
        return self.final.n

    @property
    def n_bytes(self):
        """Bytes of the arrays, without what they have room for."""
        cdef Py_ssize_t of_states = 6 * self.final.n + self.item_first.n
        return 4 * (of_states + 2 * self.edge_to.n + 2 * self.call_to.n + 2 * self.token_to.n)

    cdef int build(self, int32_t root) except -1:
        """Compiles the root and every rule that is called, in the order in which calls are found."""
        cdef Py_ssize_t done = 0
        cdef int32_t rule
        fill(&self.rule_start, self.nfa.rules.body.n, -1)
        push(&self.edge_at, 0)
        push(&self.call_at, 0)
        push(&self.token_at, 0)
        self.rule(root)
        self.start = self.rule_start.at[root]
        while done < self.call_start.n:
            rule = self.call_start.at[done]
            if rule >= 0 and self.rule_start.at[rule] < 0:
                self.rule(rule)
                if done % RULES_PER_TURN == 0:
                    give_way()      # a grammar may take a while: threads that serve other texts get their turn
            self.call_start.at[done] = self.rule_start.at[rule] if rule >= 0 else ~rule
            done += 1
        push(&self.item_first, self.final.n)
        self.has_tokens = self.token.n > 0
        return self.classes()

    cdef int rule(self, int32_t rule) except -1:
        cdef Py_ssize_t states = self.final.n
        cdef Py_ssize_t edges = self.edge_to.n
        cdef Py_ssize_t calls = self.call_to.n
        cdef Py_ssize_t tokens = self.token_to.n
        linked = self.nfa.rules.automata.get(rule)
        if linked is not None:
            return self.link(rule, linked)
        if self.left.recursive.at[rule] >= 0:
            self.left.convert(rule)
        push(&self.item_first, states)
        self.rule_start.at[rule] = states
        self.split = False
        if self.attempt(rule):
            self.reset(states, edges, calls, tokens)
            self.split = True
            if self.attempt(rule):
                raise too_large()
        return 0

    cdef int link(self, int32_t rule, Automaton a) except -1:
        """Takes over what was compiled before. Its calls are known: they are noted as ~state."""
        cdef int32_t first = self.final.n
        cdef int32_t edges = self.edge_to.n
        cdef int32_t calls = self.call_to.n
        cdef int32_t tokens = self.token_to.n
        if first + a.final.n > MAX_STATES or edges + a.edge_to.n > MAX_EDGES or self.cost() > self.most:
            raise too_large()
        self.n_linked += a.final.n
        self.rule_start.at[rule] = first + a.start
        append(&self.item, &a.item, self.item_first.n, 1)
        append(&self.item_first, &a.item_first, first, 1)
        self.item_first.n -= 1                  # the end of the last one
        append(&self.final, &a.final, 0, 1)
        self.edge_at.n -= 1
        append(&self.edge_at, &a.edge_at, edges, 1)
        append(&self.edge_range, &a.edge_range, 0, 1)
        append(&self.edge_to, &a.edge_to, first, 1)
        self.call_at.n -= 1
        append(&self.call_at, &a.call_at, calls, 1)
        append(&self.call_start, &a.call_start, ~first, -1)
        append(&self.call_to, &a.call_to, first, 1)
        self.token_at.n -= 1
        append(&self.token_at, &a.token_at, tokens, 1)
        append(&self.token, &a.token, 0, 1)
        return append(&self.token_to, &a.token_to, first, 1)

    cdef int reset(self, Py_ssize_t states, Py_ssize_t edges, Py_ssize_t calls, Py_ssize_t tokens) noexcept:
        self.final.n = self.item.n = states
        self.edge_at.n = self.call_at.n = self.token_at.n = states + 1
        self.edge_range.n = self.edge_to.n = edges
        self.call_start.n = self.call_to.n = calls
        self.token.n = self.token_to.n = tokens
        return 0

    cdef int attempt(self, int32_t rule) except -1:
        """Compiles one rule. Returns 1 if that takes too many states."""
        cdef int32_t first = self.final.n
        cdef int32_t local = 0
        cdef Py_ssize_t limit
        self.set_at.n = self.sets.n = 0
        self.n_important = 0
        forget(&self.known)
        fill(&self.mark, self.nfa.head.n, 0)
        fill(&self.important, self.nfa.head.n, 0)
        fill(&self.silent_at, self.nfa.head.n, -1)
        if self.split:
            self.alone.n = self.single.n = 0    # states of the attempt before
        fill(&self.alone, self.nfa.head.n, -1)
        fill(&self.single, self.nfa.head.n, -1)
        push(&self.set_at, 0)
        self.begin()
        self.gather(self.nfa.start.at[rule])
        self.intern(True)
        while first + local < self.final.n:
            self.leave(local, first, self.nfa.end.at[rule])
            local += 1
            if local % STATES_PER_TURN == 0:
                give_way()
            limit = MAX_STATES if self.split else first + 8 * self.n_important + 1024
            if self.final.n > min(limit, <Py_ssize_t> MAX_STATES) or self.sets.n > MAX_SETS:
                return 1
            if self.edge_to.n > MAX_EDGES or (not self.split and self.work > MAX_WORK + 32 * (self.final.n - first)):
                return 1
            if self.cost() > self.most:
                self.nfa.rules.budget.spend(self.cost(), self.named(rule))
        return 0

    cdef int64_t cost(self) noexcept:
        """Cost of the states and edges so far, and of the sets that they were found by, in units of the budget."""
        cdef int64_t found = self.edge_to.n + self.call_to.n + self.work + (self.looked_at >> 4)
        return (16 * self.final.n - 15 * self.n_linked + found) // 16

    cdef str named(self, int32_t rule):
        name = self.nfa.rules.names[rule]
        return f"the rule {name!r} of the grammar" if name else "the grammar"

    # ---- sets of states of the nfa

    cdef int begin(self) except -1:
        self.stamp += 1
        self.kernel.n = 0
        return 0

    cdef int gather(self, int32_t s) except -1:
        """Adds a state, and what empty moves lead to, to the set under way. Keeps what has other moves, or none."""
        cdef Nfa n = self.nfa
        cdef int32_t e, i, to
        cdef Py_ssize_t bottom = self.targets.n
        cdef Py_ssize_t n_visited = 0
        cdef Py_ssize_t n_edges = 0
        if self.mark.at[s] == self.stamp or not n.good.at[s]:
            return 0
        self.mark.at[s] = self.stamp
        e = n.head.at[s]
        if e >= 0 and n.next.at[e] < 0 and n.kind.at[e] == BYTES and n.good.at[n.to.at[e]]:
            self.work += 1                      # most states have one move, and are of a text
            self.looked_at += 1
            return self.keep(s)
        push(&self.targets, s)
        while self.targets.n > bottom:
            self.targets.n -= 1
            turn(n_visited)
            n_visited += 1
            s = self.targets.at[self.targets.n]
            e = self.silent_at.at[s]
            if e < 0:
                e = self.find_silent(s)
            n_edges += self.silent.at[e]
            for i in range(e + 3, e + 3 + self.silent.at[e + 2]):
                turn(i)
                to = self.silent.at[i]
                if self.mark.at[to] != self.stamp:
                    self.mark.at[to] = self.stamp
                    push(&self.targets, to)
            if self.silent.at[e + 1]:
                self.keep(s)
        self.work += n_visited
        self.looked_at += n_edges
        return 0

    cdef int32_t find_silent(self, int32_t s) except -1:
        """Notes what `gather` asks of a state, which may have hundreds of moves and be gathered thousands of times: how
        many it has, whether some are not empty, and where the empty ones lead."""
        cdef Nfa n = self.nfa
        cdef int32_t e = n.head.at[s], kind, to, place = self.silent.n, n_edges = 0
        cdef bint matters = e < 0
        self.silent_at.at[s] = place
        for _ in range(3):
            push(&self.silent, 0)
        while e >= 0:
            turn(n_edges)
            n_edges += 1
            kind, to = n.kind.at[e], n.to.at[e]
            if n.good.at[to]:
                matters = matters or kind != EPS
                if kind == EPS or (kind == CALL and n.nullable.at[n.value.at[e]]):
                    push(&self.silent, to)
            e = n.next.at[e]
        self.silent.at[place] = n_edges
        self.silent.at[place + 1] = matters
        self.silent.at[place + 2] = self.silent.n - place - 3
        return place

    cdef int keep(self, int32_t s) except -1:
        """Adds a state with moves to the set under way."""
        push(&self.kernel, s)
        if not self.important.at[s]:
            self.important.at[s] = 1
            self.n_important += 1
        return 0

    cdef int32_t intern(self, bint fresh) except -1:
        """The state of the set under way; `fresh`: the start, which no edge leads to."""
        cdef uint64_t key = 0x9E3779B97F4A7C15
        cdef Py_ssize_t i
        cdef Py_ssize_t n = self.kernel.n
        cdef int32_t at
        cdef int32_t first = self.final.n - (self.set_at.n - 1)     # earlier states are other rules'
        if self.split and self.cost() > self.most:
            self.nfa.rules.budget.spend(self.cost(), "the grammar")
        if n == 1:
            at = self.single.at[self.kernel.at[0]]
            if at >= first and not fresh:
                return at
            if not fresh:
                self.single.at[self.kernel.at[0]] = self.final.n
        else:
            if n > MANY:
                with nogil:
                    sort(self.kernel.at, n)
            else:
                sort(self.kernel.at, n)
            for i in range(n):          # a sum, whose parts don't wait for each other
                key += mixed(<uint64_t> (self.kernel.at[i] + 1))
            key |= 1
            while not fresh:
                at = get(&self.known, key)
                if at < 0:
                    break
                i = self.set_at.at[at]
                if self.set_at.at[at + 1] - i == n:
                    if not memcmp(self.sets.at + i, self.kernel.at, n * sizeof(int32_t)):
                        return first + at
                key += 2
            if not fresh:
                put(&self.known, key, self.set_at.n - 1)
        for i in range(n):
            push(&self.sets, self.kernel.at[i])
            turn(i)
        push(&self.set_at, self.sets.n)
        push(&self.final, 0)
        push(&self.item, self.item_first.n - 1)
        return self.final.n - 1

    # ---- edges of one state

    cdef int leave(self, int32_t local, int32_t first, int32_t end) except -1:
        """Edges of a state: those of all members of its set, equal ones brought together."""
        cdef Nfa n = self.nfa
        cdef Py_ssize_t i
        cdef int32_t s, e
        if self.leave_chain(local, end):
            return 0
        self.ranges.n = 0
        for i in range(self.set_at.at[local], self.set_at.at[local + 1]):
            s = self.sets.at[i]
            if s == end and local:
                self.final.at[first + local] = 1
            e = n.head.at[s]
            turn(i)
            while e >= 0:
                turn(self.ranges.n)
                if n.kind.at[e] != EPS and n.good.at[n.to.at[e]]:
                    if n.kind.at[e] not in (CALL, TAKEN) or n.fruitful.at[n.value.at[e]]:
                        push(&self.ranges, e)
                e = n.next.at[e]
        self.work += self.ranges.n
        if self.byte_edges() < self.ranges.n:
            self.other_edges(CALL)
            self.other_edges(TAKEN)
            self.other_edges(ONE_TOKEN)
            self.other_edges(NOT_TOKEN)
            self.other_edges(NO_TEXT)
        push(&self.edge_at, self.edge_to.n)
        push(&self.call_at, self.call_to.n)
        push(&self.token_at, self.token_to.n)
        return 0

    cdef bint leave_chain(self, int32_t local, int32_t end) except -1:
        """`leave` of a set of one state that has one move, of bytes, as most are; False for others."""
        cdef Nfa n = self.nfa
        cdef Py_ssize_t i = self.set_at.at[local]
        cdef int32_t e
        if self.set_at.at[local + 1] - i != 1 or self.sets.at[i] == end:
            return False
        e = n.head.at[self.sets.at[i]]
        if e < 0 or n.next.at[e] >= 0 or n.kind.at[e] != BYTES or not n.good.at[n.to.at[e]]:
            return False
        self.work += 1
        push(&self.edge_range, n.value.at[e])
        push(&self.edge_to, self.behind(n.to.at[e]))
        push(&self.edge_at, self.edge_to.n)
        push(&self.call_at, self.call_to.n)
        push(&self.token_at, self.token_to.n)
        return True

    cdef Py_ssize_t byte_edges(self) except -1:
        """Cuts 0..255 where a range begins or ends; each piece leads to one set. Returns the number of ranges."""
        cdef Nfa n = self.nfa
        cdef uint64_t cut[5]
        cdef int32_t first[256]
        cdef Py_ssize_t i, n_ranges
        cdef int32_t e, low, end, piece
        memset(cut, 0, sizeof(cut))
        mark_cut(cut, 256)
        self.pieces.n = 0                       # (edge, next) lists, by the first byte of a piece
        for i in range(self.ranges.n):
            turn(i)
            e = self.ranges.at[i]
            if n.kind.at[e] == BYTES:
                mark_cut(cut, n.value.at[e] >> 8)
                mark_cut(cut, (n.value.at[e] & 255) + 1)
                push(&self.pieces, e)
        n_ranges = self.pieces.n
        if n_ranges <= 1 or self.split:
            self.single_edges()
            return n_ranges
        memset(first, 255, sizeof(first))
        for i in range(n_ranges):
            e = self.pieces.at[i]
            piece = n.value.at[e] >> 8
            if self.pieces.n >> 2 > MAX_WORK + 32 * self.final.n:
                self.work += self.pieces.n >> 2     # `attempt` ends
                return self.ranges.n
            while piece <= n.value.at[e] & 255:
                turn(self.pieces.n >> 1)
                push(&self.pieces, e)
                push(&self.pieces, first[piece])
                first[piece] = self.pieces.n - 2
                piece = next_cut(cut, piece + 1)
        self.work += self.pieces.n >> 2
        low = next_cut(cut, 0)
        while low < 256:
            end = next_cut(cut, low + 1)
            if first[low] >= 0:
                self.byte_edge(low, end - 1, self.behind_piece(first[low]))
            low = end
        return n_ranges

    cdef int32_t behind_piece(self, int32_t piece) except -1:
        """The state that the edges of a piece lead to together."""
        cdef Nfa n = self.nfa
        if self.pieces.at[piece + 1] < 0:
            return self.behind(n.to.at[self.pieces.at[piece]])
        self.begin()
        while piece >= 0:
            turn(piece >> 1)
            self.gather(n.to.at[self.pieces.at[piece]])
            piece = self.pieces.at[piece + 1]
        return self.intern(False)

    cdef int32_t behind(self, int32_t to) except -1:
        """The state that one edge leads to: most do so alone, and it is found once for all that lead there."""
        cdef int32_t first = self.final.n - (self.set_at.n - 1)     # earlier states are other rules'
        if self.alone.at[to] < first:
            self.begin()
            self.gather(to)
            self.alone.at[to] = self.intern(False)
        return self.alone.at[to]

    cdef int single_edges(self) except -1:
        """Each edge as it is, to the set of its target alone."""
        cdef Nfa n = self.nfa
        cdef Py_ssize_t i
        cdef int32_t e
        for i in range(self.pieces.n):
            turn(i)
            e = self.pieces.at[i]
            self.byte_edge(n.value.at[e] >> 8, n.value.at[e] & 255, self.behind(n.to.at[e]))
        return 0

    cdef int byte_edge(self, int low, int high, int32_t target) except -1:
        cdef Py_ssize_t last = self.edge_to.n - 1
        if last >= self.edge_at.at[self.edge_at.n - 1] and self.edge_to.at[last] == target:
            if self.edge_range.at[last] & 255 == low - 1:
                self.edge_range.at[last] = self.edge_range.at[last] & ~255 | high
                return 0
        push(&self.edge_range, low << 8 | high)
        push(&self.edge_to, target)
        return 0

    cdef int other_edges(self, int kind) except -1:
        """Calls or tokens: edges with the same rule or token lead to one set."""
        cdef Nfa n = self.nfa
        cdef Ints groups = Ints(NULL, 0, 0)     # the last piece of each value, in the order in which values come
        cdef Map known = Map(NULL, NULL, 0, 0)
        cdef Py_ssize_t i
        cdef int32_t e, group
        self.pieces.n = 0                       # (edge, next) of the edges with a value
        try:
            for i in range(self.ranges.n):
                turn(i)
                e = self.ranges.at[i]
                if n.kind.at[e] != kind:
                    continue
                group = self.group_of(n.value.at[e], &groups, &known)
                push(&self.pieces, e)
                push(&self.pieces, groups.at[group])
                groups.at[group] = self.pieces.n - 2
            for i in range(groups.n):
                turn(i)
                e = self.pieces.at[groups.at[i]]
                self.other_edge(kind, n.value.at[e], self.behind_piece(groups.at[i]))
        finally:
            drop(&groups)
            forget(&known)
        return 0

    cdef int32_t group_of(self, int32_t value, Ints *groups, Map *known) except -1:
        """Number of the group of edges with a value, which may be a new one: a few are looked through. Where a rule is
        split, each edge is one."""
        cdef int32_t i, group = -1
        if not self.split and groups.n <= FEW:
            for i in range(groups.n):
                if self.nfa.value.at[self.pieces.at[groups.at[i]]] == value:
                    return i
        elif not self.split:
            if known.n == 0:
                for i in range(groups.n):
                    put(known, self.nfa.value.at[self.pieces.at[groups.at[i]]] + 1, i)
            group = get(known, value + 1)
        if group < 0:
            group = groups.n
            push(groups, -1)
            if known.n:
                put(known, value + 1, group)
        return group

    cdef int other_edge(self, int kind, int32_t value, int32_t target) except -1:
        cdef Rules rules = self.nfa.rules
        cdef int32_t k
        if kind in (CALL, TAKEN):
            push(&self.call_start, value)       # the rule, until its start is known
            return push(&self.call_to, target)
        if kind != NO_TEXT:
            push(&self.token, value if kind == ONE_TOKEN else ~value)
            return push(&self.token_to, target)
        push(&self.token, CONTROL_BUT)
        push(&self.token_to, target)
        for k in range(rules.b.at[value]):
            push(&self.token, EXCEPTED + rules.pool.at[rules.a.at[value] + k])
            push(&self.token_to, target)
        return 0

    cdef int classes(self) except -1:
        """Bytes that no edge tells apart are one class."""
        cdef uint8_t cut[257]
        cdef Py_ssize_t i
        memset(cut, 0, 257)
        for i in range(self.edge_range.n):
            turn(i)
            cut[self.edge_range.at[i] >> 8] = 1
            cut[(self.edge_range.at[i] & 255) + 1] = 1
        self.n_classes = 0
        for i in range(256):
            if i == 0 or cut[i]:
                self.class_byte[self.n_classes] = i
                self.n_classes += 1
            self.class_of[i] = self.n_classes - 1
        return 0
