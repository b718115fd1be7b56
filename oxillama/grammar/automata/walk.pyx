"""`Walk`: which tokens lead from a node to anywhere, found by going through the tries of a vocabulary.

Three ways, the quickest first: ready sets, where any plain character may follow; the trie of shapes, as long as a
grammar treats all characters of a class alike; and the tries of texts where it doesn't. What they find is the same.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcmp

from oxillama.grammar.automata.stacks cimport Stacks
from oxillama.grammar.automata.trie cimport (
    BEYOND, DIGIT, LOWER, N_SHAPE_CLASSES, PLAIN_CHARS, UPPER, Shapes, TokenTrie, Trie, shape_class
)
from oxillama.grammar.automata.turns cimport turn
from oxillama.grammar.automata.vectors cimport drop, fill, push

cdef enum:
    MANY_NODES = 8              # different nodes after one plain character
    MIXED = -2                  # in the table of steps: not all characters of a class lead to the same node
    SHAPES = 3                  # kinds of places: tries of texts, from here on tries of shapes,
    TOKENS = 5                  # and the rest of a token behind some bytes

# UTF-8 (RFC 3629, section 4) as an automaton: phase, low, high, next phase. A plain character begins and ends in 0.
UTF8 = (
    (0, 0x20, 0x21, 0), (0, 0x23, 0x5B, 0), (0, 0x5D, 0x7E, 0),
    (0, 0xC2, 0xDF, 1), (0, 0xE0, 0xE0, 4), (0, 0xE1, 0xEC, 2), (0, 0xED, 0xED, 5), (0, 0xEE, 0xEF, 2),
    (0, 0xF0, 0xF0, 6), (0, 0xF1, 0xF3, 3), (0, 0xF4, 0xF4, 7),
    (3, 0x80, 0xBF, 2), (6, 0x90, 0xBF, 2), (7, 0x80, 0x8F, 2),
    (2, 0x80, 0xBF, 1), (4, 0xA0, 0xBF, 1), (5, 0x80, 0x9F, 1),
    (1, 0x80, 0xBF, 0),
)
ALPHABETS = ((LOWER, 0x61, 0x7A), (UPPER, 0x41, 0x5A), (DIGIT, 0x30, 0x39))


cdef inline void set_bit(uint32_t *bits, int32_t i) noexcept nogil:
    bits[i >> 5] |= <uint32_t> 1 << (i & 31)


cdef class Walk:
    """Walks of one grammar through one vocabulary."""

    def __init__(self, Stacks stacks not None, TokenTrie trie not None):
        self.stacks, self.trie, self.automaton = stacks, trie, stacks.automaton
        self.n_classes, self.n_columns = stacks.automaton.n_classes, stacks.n_columns
        fill(&self.path, trie.max_depth + 1, 0)
        fill(&self.shape_path, trie.max_depth + 1, 0)
        self.find_steps()

    def __dealloc__(self):
        cdef int i
        for i in range(3):
            drop(&self.groups[i])
        drop(&self.escapes)
        drop(&self.steps)
        drop(&self.path)
        drop(&self.shape_path)
        drop(&self.level)
        drop(&self.following)
        drop(&self.open)

    cdef int find_steps(self) except -1:
        """Classes of bytes for everything that characters consist of, each once."""
        cdef const uint8_t *class_of = self.automaton.class_of
        cdef int i, phase, low, high, to, byte, before
        for phase, low, high, to in UTF8:
            before = -1
            for byte in range(low, high + 1):
                if class_of[byte] != before:
                    before = class_of[byte]
                    self.add_step(phase, before, to)
            if high < 0x80:
                self.beyond_ascii = self.steps.n
        for i in range(N_SHAPE_CLASSES):
            self.column_of[i] = class_of[i] if i < BEYOND else self.n_classes + 3
        i = 0
        for to, low, high in ALPHABETS:
            self.column_of[to] = self.n_classes + i
            before = -1
            for byte in range(low, high + 1):
                if class_of[byte] != before:
                    before = class_of[byte]
                    push(&self.groups[i], before)
            i += 1
        return 0

    cdef int add_step(self, int phase, int cls, int to) except -1:
        cdef Py_ssize_t i
        for i in range(0, self.steps.n, 3):
            if self.steps.at[i] == phase and self.steps.at[i + 1] == cls and self.steps.at[i + 2] == to:
                return 0
        push(&self.steps, phase)
        push(&self.steps, cls)
        return push(&self.steps, to)

    cdef int whole(self, int32_t node, uint32_t *out, bint escaping) except -2:
        """Adds all tokens that lead from a node to anywhere. Returns the level of the ready set among them, or -1."""
        cdef int level
        cdef const uint32_t *ready
        cdef Py_ssize_t w
        self.escaping = escaping
        self.escapes.n = self.n_below = 0
        level = self.plain_levels(node)
        if level < 0:
            self.shapes(0, node, 0, out)
        elif level > 0:
            ready = self.trie.level + level * self.trie.n_words
            for w in range(self.trie.n_words):
                out[w] |= ready[w]
        self.shapes(1, node, 0, out)
        self.texts(2, node, 1, self.trie.trie[2].byte.n, out)
        return level

    cdef int below(self, int32_t kind, int32_t place, int32_t node, uint32_t *out) except -1:
        """Adds the tokens that pass a place and go on from a node.

        kind: 0 to 2: node of a trie of texts; 3 or 4: node of a trie of shapes; from 5 on: a token, from its byte
        kind - 5 on.
        """
        cdef Trie *t
        self.escaping = False
        self.n_below = 0
        if kind >= TOKENS:
            return self.token(place, kind - TOKENS, node, out)
        if kind >= SHAPES:
            return self.shapes(kind - SHAPES, node, place, out)
        t = &self.trie.trie[kind]
        return self.texts(kind, node, place + 1, t.skip.at[place], out)

    cdef int texts(self, int which, int32_t node, int32_t i, int32_t last, uint32_t *out) except -1:
        """Siblings from node i on, and all that is below them, up to `last`; `node` is where their parent led."""
        cdef Stacks s = self.stacks
        cdef Trie *t = &self.trie.trie[which]
        cdef int n_columns = self.n_columns
        cdef const uint8_t *class_of = self.automaton.class_of
        cdef int32_t *path = self.path.at
        cdef int32_t here, token, c, depth
        if i < last:
            path[t.depth.at[i] - 1] = node
        while i < last:
            self.n_passed += 1
            turn(self.n_passed)
            depth = t.depth.at[i]
            node = path[depth - 1]
            c = class_of[t.byte.at[i]]
            here = s.row.at[node]
            if here >= 0:
                here = s.table.at[here * n_columns + c]
            if here < 0:
                here = s.cached_step(node, c)
            if here == 0:
                i = t.skip.at[i]
                continue
            path[depth] = here
            token = t.token.at[i]
            while token >= 0:
                set_bit(out, token)
                token = self.trie.next.at[token]
            if self.escaping and s.ends.at[here] and i + 1 < t.skip.at[i]:
                push(&self.escapes, which)
                push(&self.escapes, i)
                self.n_below += t.skip.at[i] - i
                if self.n_below > MUCH_BELOW:
                    break
            i += 1
        return 0

    # ---- shapes

    cdef int shapes(self, int which, int32_t node, int32_t above, uint32_t *out) except -1:
        """All below a node of a trie of shapes."""
        cdef Stacks s = self.stacks
        cdef Shapes *t = &self.trie.shapes[which]
        cdef int32_t *path = self.shape_path.at
        cdef int32_t i = above + 1
        cdef int32_t last = t.skip.at[above]
        cdef int32_t depth = t.depth.at[above]
        cdef int32_t here, k, column
        path[depth] = node
        while i < last and self.n_below <= MUCH_BELOW:
            self.n_passed += 1
            turn(self.n_passed)
            depth = t.depth.at[i]
            node = path[depth - 1]
            column = self.column_of[t.cls.at[i]]
            here = s.row.at[node]
            if here >= 0:
                here = s.table.at[here * self.n_columns + column]
            if here == -1:
                here = self.column(node, column)
            if here <= 0:
                if here == MIXED:
                    self.mixed(which, node, i, out)
                i = t.skip.at[i]
                continue
            path[depth] = here
            for k in range(t.first.at[i], t.first.at[i + 1]):
                set_bit(out, t.token.at[k])
            if self.escaping and s.ends.at[here] and i + 1 < t.skip.at[i]:
                push(&self.escapes, SHAPES + which)
                push(&self.escapes, i)
                self.n_below += t.skip.at[i] - i
            i += 1
        return 0

    cdef int mixed(self, int which, int32_t node, int32_t i, uint32_t *out) except -1:
        """All from a node of a trie of shapes on, text by text; `node` is where its parent led."""
        cdef Shapes *t = &self.trie.shapes[which]
        cdef Trie *texts = &self.trie.trie[which]
        cdef int32_t above = t.above.at[i]
        cdef int32_t k, token, at
        cdef const uint8_t *text = self.trie.blob
        if above >= 0:
            k = above + 1
            while k < texts.skip.at[above] and self.n_below <= MUCH_BELOW:
                if shape_class(texts.byte.at[k]) == t.cls.at[i]:
                    self.texts(which, node, k, texts.skip.at[k], out)
                k = texts.skip.at[k]
            return 0
        for k in range(t.first.at[i], t.first.at[t.skip.at[i]]):
            token = t.token.at[k]
            at = self.trie.start.at[token]
            for _ in range(1, t.depth.at[i]):
                at += 1
                while text[at] & 0xC0 == 0x80:
                    at += 1
            self.token(token, at - self.trie.start.at[token], node, out)
            if self.n_below > MUCH_BELOW:
                break
        return 0

    cdef int token(self, int32_t token, int32_t at, int32_t node, uint32_t *out) except -1:
        """One token, from some byte on."""
        cdef Stacks s = self.stacks
        cdef const uint8_t *text = <const uint8_t *> self.trie.blob + self.trie.start.at[token]
        cdef int32_t n = self.trie.start.at[token + 1] - self.trie.start.at[token]
        cdef int32_t row, c
        self.n_passed += 1
        turn(self.n_passed)
        while at < n:
            c = self.automaton.class_of[text[at]]
            row = s.row.at[node]
            row = s.table.at[row * self.n_columns + c] if row >= 0 else -1
            node = row if row >= 0 else s.cached_step(node, c)
            if node == 0:
                return 0
            at += 1
            if self.escaping and s.ends.at[node] and at < n:
                push(&self.escapes, TOKENS + at)
                push(&self.escapes, token)
                self.n_below += 1
        set_bit(out, token)
        return 0

    # ---- steps by a class of characters

    cdef int32_t column(self, int32_t node, int column) except -1:
        """Node to which a column of the table leads; kept there."""
        cdef int32_t found
        if column < self.n_classes:
            return self.stacks.cached_step(node, column)
        found = self.beyond(node) if column == self.n_classes + 3 else self.alike(node, column - self.n_classes)
        if self.stacks.row.at[node] < 0:
            self.stacks.new_row(node)
        self.stacks.table.at[self.stacks.row.at[node] * self.n_columns + column] = found
        return found

    cdef int32_t alike(self, int32_t node, int group) except -1:
        """Node to which each letter of an alphabet leads, or MIXED."""
        cdef int32_t found = self.stacks.cached_step(node, self.groups[group].at[0])
        cdef Py_ssize_t i
        for i in range(1, self.groups[group].n):
            if self.stacks.cached_step(node, self.groups[group].at[i]) != found:
                return MIXED
        return found

    cdef int32_t beyond(self, int32_t node) except -1:
        """Node to which each character beyond ASCII leads, or MIXED; also where a stack may be empty inside of one."""
        cdef int32_t found = 0
        cdef bint dead = False
        cdef Py_ssize_t i = 0
        cdef Py_ssize_t k
        cdef int32_t after
        self.open.n = 0                         # (phase, node) to be continued
        push(&self.open, 0)
        push(&self.open, node)
        while i < self.open.n:
            for k in range(self.beyond_ascii, self.steps.n, 3):
                if self.steps.at[k] != self.open.at[i]:
                    continue
                after = self.stacks.cached_step(self.open.at[i + 1], self.steps.at[k + 1])
                if after == 0:
                    if i:
                        return MIXED
                    dead = True
                elif self.steps.at[k + 2] == 0:
                    if found and found != after:
                        return MIXED
                    found = after
                elif self.stacks.ends.at[after] or self.open.n > 16 * MANY_NODES:
                    return MIXED
                else:
                    self.reach(self.steps.at[k + 2], after)
            i += 2
        return MIXED if dead and self.open.n > 2 else found

    cdef int reach(self, int phase, int32_t node) except -1:
        cdef Py_ssize_t i
        for i in range(0, self.open.n, 2):
            if self.open.at[i] == phase and self.open.at[i + 1] == node:
                return 0
        push(&self.open, phase)
        return push(&self.open, node)

    # ---- ready sets

    cdef int plain_levels(self, int32_t node) except -2:
        """k if exactly the plain texts of at most k characters may follow (PLAIN_CHARS: or more); -1: no such k."""
        cdef int k, status
        cdef Py_ssize_t i
        self.level.n = 0
        push(&self.level, node)
        for k in range(PLAIN_CHARS):
            self.following.n = 0
            status = 0
            for i in range(self.level.n):
                status |= self.plain_character(self.level.at[i])
            if status == 1:
                return k
            if status != 2:
                return -1
            if self.following.n == self.level.n and not memcmp(self.following.at, self.level.at, 4 * self.level.n):
                return PLAIN_CHARS
            self.level, self.following = self.following, self.level
        return PLAIN_CHARS

    cdef int plain_character(self, int32_t node) except -1:
        """Kind of what one plain character after a node can be: 1 none, 2 any, 3 or 4 neither. Adds to `following`."""
        cdef int status = 0
        cdef Py_ssize_t i = 0
        cdef Py_ssize_t step
        self.open.n = 0                         # (phase, node) to be continued
        push(&self.open, 0)
        push(&self.open, node)
        while i < self.open.n:
            for step in range(0, self.steps.n, 3):
                if self.steps.at[step] == self.open.at[i]:
                    status |= self.plain_step(step, self.open.at[i + 1])
                    if status & 4 or status == 3:
                        return 4
            if self.open.n > 16 * MANY_NODES:
                return 4
            i += 2
        return status

    cdef int plain_step(self, Py_ssize_t step, int32_t node) except -1:
        """Kind for one class of bytes in one phase of a character."""
        cdef int32_t after = self.stacks.cached_step(node, self.steps.at[step + 1])
        cdef int32_t phase = self.steps.at[step + 2]
        cdef Py_ssize_t i
        if after == 0:
            return 1 if self.steps.at[step] == 0 else 4
        if self.escaping and self.stacks.ends.at[after]:
            return 4
        if phase:
            self.reach(phase, after)
            return 2
        for i in range(self.following.n):
            if self.following.at[i] == after:
                return 2
        push(&self.following, after)
        return 2 if self.following.n <= MANY_NODES else 4
