"""`Stacks`: where a parse stands, as one integer.

A parse in progress is a set of stacks of automaton states, the innermost rule on top. A *node* is such a set, as a
deterministic automaton that reads a stack from its top: pairs (state, node of what may lie below it), sorted by state,
and whether the empty stack is in the set. Nodes are immutable and equal sets are one node (hash-consing), as in binary
decision diagrams (Bryant 1986); they share what lies below. Node 0 is the empty set: no reading is left. Node 1 holds
the empty stack alone: the text is complete and nothing may follow.

So ambiguity and left context merge by themselves: `S ::= S S | "a"` after n bytes has 2^n readings and O(1) new nodes.
Two positions from which the same may follow in the same way are one integer, and whatever is computed for a node
(where a byte leads, which tokens are allowed) is computed once.

A node of a parse is *closed*: its tops are states that can take a byte or a token; calls were made and finished rules
popped. Closing is memoised by (state, node below). There is no recursion in C: unions and closures wait on worklists.
"""

from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcmp

from oxillama.errors import GrammarError
from oxillama.grammar.automata.automaton cimport CONTROL_BUT, Automaton, excepted
from oxillama.grammar.automata.turns cimport turn
from oxillama.grammar.automata.vectors cimport (
    Ints, Map, drop, fill, forget, get, make_map, mixed, pair_key, push, put, reserve,
)

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    MAX_NEW = 1 << 21           # pairs and nodes that one operation may add
    MAX_KNOWN = 1 << 22         # unions and closures that one operation may add
    KNOWN_PER_NODE = 4          # of them, which count as one pair or node
    FEW = 1 << 20               # no compaction below this
    MAX_TABLE = 1 << 23         # entries of the table
    CHARACTER_COLUMNS = 4       # what walks note of a-z, A-Z, 0-9 and the characters beyond ASCII


cdef object too_ambiguous():
    return GrammarError(
        f"the grammar is too ambiguous: one step needs stacks with more than {MAX_NEW} entries. Write it so that a "
        "text can be read in fewer ways"
    )


cdef class Stacks:
    """The nodes of one grammar. `root` is where a text begins; `max_table`: entries of the table of steps."""

    def __init__(self, Automaton automaton not None, Py_ssize_t max_table=MAX_TABLE):
        self.automaton = automaton
        self.max_table = max_table
        self.n_columns = automaton.n_classes + CHARACTER_COLUMNS
        self.start()

    def __dealloc__(self):
        self.clear()
        drop(&self.at)
        drop(&self.top)
        drop(&self.below)
        drop(&self.ends)
        drop(&self.popped)
        drop(&self.row)
        drop(&self.merged_top)
        drop(&self.merged_below)
        drop(&self.work)
        drop(&self.tasks)

    cdef int clear(self) noexcept:
        forget(&self.nodes)
        forget(&self.unions)
        forget(&self.closures)
        drop(&self.table)
        return 0

    cdef int start(self) except -1:
        push(&self.at, 0)
        self.threshold = FEW
        self.begin()
        self.cons(NULL, NULL, 0, False)
        self.cons(NULL, NULL, 0, True)
        self.root = self.closure(self.automaton.start, 1)
        if self.automaton.nullable:
            self.root = self.union(self.root, 1)
        return 0

    @property
    def n_nodes(self):
        return self.ends.n

    @property
    def n_bytes(self):
        """Bytes of nodes, of what is known of them, and of the table of steps; without those of the automaton."""
        cdef Py_ssize_t n_known = 0
        if self.nodes.key != NULL:
            n_known += self.nodes.mask + 1
        if self.unions.key != NULL:
            n_known += self.unions.mask + 1
        if self.closures.key != NULL:
            n_known += self.closures.mask + 1
        return 12 * n_known + 4 * (4 * self.ends.n + 2 * self.top.n + self.table.n)

    @property
    def crowded(self):
        """Whether it is time for `compact`."""
        return self.ends.n + self.top.n + (self.unions.n + self.closures.n) // KNOWN_PER_NODE > self.threshold

    cdef int begin(self) except -1:
        """Called before each operation on behalf of a user: bounds what it may add."""
        self.ceiling = self.ends.n + self.top.n + MAX_NEW
        self.most_known = self.unions.n + self.closures.n + MAX_KNOWN
        self.work.n = self.tasks.n = 0
        return 0

    cdef int check_known(self) except -1:
        if self.unions.n + self.closures.n >= self.most_known:
            raise too_ambiguous()
        return 0

    # ---- nodes

    cdef int32_t cons(self, const int32_t *top, const int32_t *below, Py_ssize_t n, bint ends) except -1:
        cdef uint64_t key = mixed(<uint64_t> n * 2 + ends + 1)
        cdef Py_ssize_t i, at
        cdef int32_t node
        for i in range(n):
            key = mixed(key ^ pair_key(top[i], below[i]))
        key |= 1
        while True:
            node = get(&self.nodes, key)
            if node < 0:
                break
            at = self.at.at[node]
            if self.at.at[node + 1] - at == n and self.ends.at[node] == ends:
                if n == 0 or not (
                    memcmp(self.top.at + at, top, n * sizeof(int32_t))
                    or memcmp(self.below.at + at, below, n * sizeof(int32_t))
                ):
                    return node
            key += 2
        node = self.ends.n
        if node + self.top.n + n >= self.ceiling:
            raise too_ambiguous()
        # All the memory first: what others see is a whole node or none.
        reserve(&self.top, self.top.n + n)
        reserve(&self.below, self.below.n + n)
        reserve(&self.at, node + 2)
        reserve(&self.ends, node + 1)
        reserve(&self.popped, node + 1)
        reserve(&self.row, node + 1)
        put(&self.nodes, key, node)
        for i in range(n):
            push(&self.top, top[i])
            push(&self.below, below[i])
        push(&self.at, self.top.n)
        push(&self.ends, ends)
        push(&self.popped, -1)
        push(&self.row, -1)
        return node

    cdef int32_t single(self, int32_t top, int32_t below) except -1:
        return self.cons(&top, &below, 1, False)

    # ---- union

    cdef int32_t known_union(self, int32_t a, int32_t b) noexcept:
        if a == b or b == 0:
            return a
        if a == 0:
            return b
        return get(&self.unions, pair_key(min(a, b), max(a, b)))

    cdef int32_t union(self, int32_t a, int32_t b) except -1:
        cdef int32_t found = self.known_union(a, b)
        cdef Py_ssize_t bottom = self.work.n
        if found >= 0:
            return found
        push(&self.work, a)
        push(&self.work, b)
        while self.work.n > bottom:
            self.n_passed += 1
            turn(self.n_passed)
            a = self.work.at[self.work.n - 2]
            b = self.work.at[self.work.n - 1]
            found = self.merge(a, b)
            if found >= 0:
                self.check_known()
                put(&self.unions, pair_key(min(a, b), max(a, b)), found)
                self.work.n -= 2
        return found

    cdef int32_t merge(self, int32_t a, int32_t b) except -2:
        """The union, or -1 after putting a union that is needed first on the worklist."""
        cdef Py_ssize_t i = self.at.at[a]
        cdef Py_ssize_t j = self.at.at[b]
        cdef Py_ssize_t i_end = self.at.at[a + 1]
        cdef Py_ssize_t j_end = self.at.at[b + 1]
        cdef int32_t below, top
        self.merged_top.n = self.merged_below.n = 0
        while i < i_end or j < j_end:
            self.n_passed += 1
            turn(self.n_passed)
            if j == j_end or (i < i_end and self.top.at[i] < self.top.at[j]):
                top, below = self.top.at[i], self.below.at[i]
                i += 1
            elif i == i_end or self.top.at[j] < self.top.at[i]:
                top, below = self.top.at[j], self.below.at[j]
                j += 1
            else:
                top = self.top.at[i]
                below = self.known_union(self.below.at[i], self.below.at[j])
                if below < 0:
                    push(&self.work, self.below.at[i])
                    push(&self.work, self.below.at[j])
                    return -1
                i += 1
                j += 1
            push(&self.merged_top, top)
            push(&self.merged_below, below)
        return self.cons(
            self.merged_top.at, self.merged_below.at, self.merged_top.n, self.ends.at[a] or self.ends.at[b]
        )

    # ---- closure

    cdef int32_t closure(self, int32_t state, int32_t below) except -1:
        """The closed node of the stacks with `state` on top of those of `below`."""
        cdef int32_t found = get(&self.closures, pair_key(state, below))
        if found < 0:
            self.evaluate(state, below)
            found = get(&self.closures, pair_key(state, below))
        return found

    cdef int32_t pop(self, int32_t node) except -1:
        """The closed node of the stacks of `node` without their tops, whose rules go on."""
        if self.popped.at[node] < 0:
            self.evaluate(-1, node)
        return self.popped.at[node]

    cdef int evaluate(self, int32_t state, int32_t below) except -1:
        cdef Py_ssize_t bottom = self.tasks.n
        cdef int32_t found
        push(&self.tasks, state)
        push(&self.tasks, below)
        while self.tasks.n > bottom:
            self.n_passed += 1
            turn(self.n_passed)
            state = self.tasks.at[self.tasks.n - 2]
            below = self.tasks.at[self.tasks.n - 1]
            found = self.try_pop(below) if state < 0 else self.try_closure(state, below)
            if found < 0:
                continue
            if state < 0:
                self.popped.at[below] = found
            else:
                self.check_known()
                put(&self.closures, pair_key(state, below), found)
            self.tasks.n -= 2
        return 0

    cdef int32_t try_pop(self, int32_t node) except -2:
        """The node, or -1 after putting what is needed first on the worklist."""
        cdef int32_t found
        cdef int32_t result = 1 if self.ends.at[node] else 0
        cdef bint missing = False
        cdef Py_ssize_t i
        for i in range(self.at.at[node], self.at.at[node + 1]):
            self.n_passed += 1
            turn(self.n_passed)
            found = get(&self.closures, pair_key(self.top.at[i], self.below.at[i]))
            if found < 0:
                push(&self.tasks, self.top.at[i])
                push(&self.tasks, self.below.at[i])
                missing = True
            elif not missing:
                result = self.union(result, found)
        return -1 if missing else result

    cdef int32_t try_closure(self, int32_t state, int32_t below) except -2:
        """Finds the closure as `try_pop` does. A call in last place leaves nothing to come back to: the callee takes
        over the stack below."""
        cdef Automaton a = self.automaton
        cdef int32_t found, stack, to
        cdef int32_t result = 0
        cdef bint missing = False
        cdef Py_ssize_t i
        if a.edge_at.at[state] < a.edge_at.at[state + 1] or a.token_at.at[state] < a.token_at.at[state + 1]:
            result = self.single(state, below)
        for i in range(a.call_at.at[state], a.call_at.at[state + 1]):
            self.n_passed += 1
            turn(self.n_passed)
            to = a.call_to.at[i]
            stack = below if a.is_last(to) else self.single(to, below)
            found = get(&self.closures, pair_key(a.call_start.at[i], stack))
            if found < 0:
                push(&self.tasks, a.call_start.at[i])
                push(&self.tasks, stack)
                missing = True
            elif not missing:
                result = self.union(result, found)
        if a.final.at[state]:
            if self.popped.at[below] < 0:
                push(&self.tasks, -1)
                push(&self.tasks, below)
                missing = True
            elif not missing:
                result = self.union(result, self.popped.at[below])
        return -1 if missing else result

    # ---- steps

    cdef int32_t step(self, int32_t node, int byte) except -1:
        """Node to which a byte leads; 0: none."""
        cdef Automaton a = self.automaton
        cdef int32_t result = 0
        cdef int32_t state
        cdef Py_ssize_t i, e
        for i in range(self.at.at[node], self.at.at[node + 1]):
            state = self.top.at[i]
            for e in range(a.edge_at.at[state], a.edge_at.at[state + 1]):
                self.n_passed += 1
                turn(self.n_passed)
                if a.edge_range.at[e] >> 8 <= byte <= a.edge_range.at[e] & 255:
                    result = self.union(result, self.closure(a.edge_to.at[e], self.below.at[i]))
        return result

    cdef int32_t cached_step(self, int32_t node, int byte_class) except -1:
        """Steps by a class of bytes, remembered in the table."""
        cdef int32_t result
        cdef Py_ssize_t n = self.n_columns
        if self.row.at[node] < 0:
            self.new_row(node)
        result = self.table.at[self.row.at[node] * n + byte_class]
        if result < 0:
            result = self.step(node, self.automaton.class_byte[byte_class])
            self.table.at[self.row.at[node] * n + byte_class] = result
        return result

    cdef int new_row(self, int32_t node) except -1:
        cdef Py_ssize_t n = self.n_columns
        cdef Py_ssize_t i
        if self.table.n + n > self.max_table:
            for i in range(self.row.n):
                self.row.at[i] = -1
            self.table.n = 0
        fill(&self.table, self.table.n + n, -1)
        self.row.at[node] = self.table.n // n - 1
        return 0

    def step_bytes(self, int32_t node, const unsigned char[::1] text not None):
        """The node after these bytes, or 0 if they can't follow."""
        cdef Py_ssize_t i
        self.check(node)
        for i in range(text.shape[0]):
            self.begin()
            node = self.step(node, text[i])
            if not node:
                break
        return node

    def step_token(self, int32_t node, int32_t token, bint is_text=False):
        """The node after a token that the grammar refers to; 0 if it refers to none such here.

        is_text: the token has a text.
        """
        cdef Automaton a = self.automaton
        cdef int32_t result = 0
        cdef int32_t state, wanted
        cdef bint found
        cdef Py_ssize_t i, e
        self.check(node)
        self.begin()
        for i in range(self.at.at[node], self.at.at[node + 1]):
            state = self.top.at[i]
            for e in range(a.token_at.at[state], a.token_at.at[state + 1]):
                wanted = a.token.at[e]
                if excepted(wanted):
                    continue
                if wanted == CONTROL_BUT:
                    found = not is_text and not a.excepts(e, state, token)
                else:
                    found = wanted == token or (wanted < 0 and ~wanted != token)
                if found:
                    result = self.union(result, self.closure(a.token_to.at[e], self.below.at[i]))
        return result

    def either(self, int32_t a, int32_t b):
        """The union of two nodes."""
        self.check(a)
        self.check(b)
        self.begin()
        return self.union(a, b)

    def is_end(self, int32_t node):
        """Whether the text may end here."""
        self.check(node)
        return bool(self.ends.at[node])

    def forced(self, int32_t node, Py_ssize_t limit):
        """The bytes that must follow, as far as there is only one way: at most `limit`."""
        cdef bytearray out = bytearray()
        cdef Automaton a = self.automaton
        cdef int32_t state, byte, low, high
        cdef Py_ssize_t i, e
        self.check(node)
        while len(out) < limit and not self.ends.at[node]:
            byte = -1
            for i in range(self.at.at[node], self.at.at[node + 1]):
                state = self.top.at[i]
                if a.token_at.at[state] < a.token_at.at[state + 1]:
                    return bytes(out)
                for e in range(a.edge_at.at[state], a.edge_at.at[state + 1]):
                    low, high = a.edge_range.at[e] >> 8, a.edge_range.at[e] & 255
                    if low != high or byte not in (-1, low):
                        return bytes(out)
                    byte = low
            if byte < 0:
                break
            out.append(byte)
            self.begin()
            node = self.step(node, byte)
        return bytes(out)

    cpdef int check(self, int32_t node) except -1:
        if not 0 <= node < self.ends.n:
            raise IndexError(f"there is no node {node}")
        return 0

    # ---- memory

    def compact(self, list histories not None):
        """Forgets every node that no history (writable int32 buffers of nodes) leads to, and renumbers these in place.

        Nodes lie above those that they point to, so one pass down marks them and one pass up renumbers them.
        """
        cdef Ints keep = Ints(NULL, 0, 0)
        cdef Map nodes
        cdef Py_ssize_t i, p, start, old_n = self.ends.n, n_kept = 0
        cdef int32_t node
        cdef int32_t[::1] history
        try:
            fill(&keep, old_n, 0)
            for history in histories:
                for i in range(history.shape[0]):
                    self.check(history[i])
                    keep.at[history[i]] = 1
            keep.at[0] = keep.at[1] = keep.at[self.root] = 1
            for node in range(old_n - 1, -1, -1):
                if keep.at[node]:
                    n_kept += 1
                    for p in range(self.at.at[node], self.at.at[node + 1]):
                        keep.at[self.below.at[p]] = 1
            make_map(&nodes, n_kept)        # the last that can fail: all that follows has its memory
            self.clear()
            self.nodes = nodes
            self.at.n = 1
            self.top.n = self.ends.n = self.popped.n = self.row.n = self.below.n = 0
            self.ceiling = PY_SSIZE_T_MAX
            start = 0
            for node in range(old_n):
                p = self.at.at[node + 1]
                if keep.at[node]:
                    for i in range(start, p):
                        self.below.at[i] = keep.at[self.below.at[i]]
                    keep.at[node] = self.moved(start, p - start, self.ends.at[node])
                start = p
            self.root = keep.at[self.root]
            for history in histories:
                for i in range(history.shape[0]):
                    history[i] = keep.at[history[i]]
        finally:
            drop(&keep)
        self.threshold = max(<Py_ssize_t> FEW, 2 * (self.ends.n + self.top.n))

    cdef int32_t moved(self, Py_ssize_t start, Py_ssize_t n, bint ends) except -1:
        """A node from pairs that lie further up in the same arrays; nothing is read after it was written over."""
        return self.cons(self.top.at + start, self.below.at + start, n, ends)
