"""`Triggers`: strings that a text is watched for, until the first one puts a grammar in force.

The automaton of Aho and Corasick (1975) over bytes. Of triggers that end at the same place the longest counts.
"""

from libc.stdint cimport int32_t, uint32_t

from oxillama.grammar.automata.masks cimport Masks
from oxillama.grammar.automata.stacks cimport Stacks
from oxillama.grammar.automata.trie cimport Trie
from oxillama.grammar.automata.vectors cimport Ints, drop, fill, push


cdef class Triggers:
    """texts: at least one, none empty. States are integers, 0 at the start of a text.

    at_line: the text begins a line, also behind spaces, so that a trigger whose first byte is a line break comes there
    without it.
    """

    cdef Stacks stacks
    cdef list texts
    cdef readonly int32_t start     # the state at the start of a text
    cdef Ints next              # [n_states, 256]
    cdef Ints found             # of each state: the trigger that is complete, or -1

    def __init__(self, Stacks stacks not None, list texts not None, bint at_line=False):
        cdef int32_t state, child, back
        cdef int byte
        self.stacks, self.texts = stacks, list(map(bytes, texts))
        self.new_state()
        for i, text in enumerate(self.texts):
            state = 0
            for byte in text:
                if self.next.at[256 * state + byte] < 0:
                    child = self.new_state()
                    self.next.at[256 * state + byte] = child
                state = self.next.at[256 * state + byte]
            self.found.at[state] = i
        todo = [(0, 0)]                         # in the order of depth, each with its longest proper suffix
        for state, back in todo:
            if self.found.at[state] < 0:
                self.found.at[state] = self.found.at[back]
            for byte in range(256):
                child = self.next.at[256 * state + byte]
                suffix = 0 if state == 0 else self.next.at[256 * back + byte]
                if child < 0:
                    self.next.at[256 * state + byte] = suffix
                else:
                    todo.append((child, suffix))
        self.start = self.line_start() if at_line else 0

    def __dealloc__(self):
        drop(&self.next)
        drop(&self.found)

    cdef int32_t new_state(self) except -1:
        fill(&self.next, self.next.n + 256, -1)
        push(&self.found, -1)
        return self.found.n - 1

    cdef int32_t line_start(self) except -1:
        """The state of a text that begins a line: that behind a line break, which spaces don't leave."""
        cdef int32_t behind = self.next.at[10]
        cdef int32_t state
        cdef int byte
        if not behind:
            return 0
        state = self.new_state()
        for byte in range(256):
            self.next.at[256 * state + byte] = self.next.at[256 * behind + byte]
        for byte in b"\t\n\v\f\r ":
            self.next.at[256 * state + byte] = state
        return state

    cdef int32_t started(self, int32_t trigger) except -1:
        """The node of the grammar after a trigger."""
        return self.stacks.step_bytes(self.stacks.root, self.texts[trigger])

    def step(self, int32_t state, bytes text):
        """(state, node) after a token's text: state is -1 once a trigger has come, and node 0 if the rest can't follow.

        A token without text interrupts a trigger.
        """
        cdef Py_ssize_t i
        self.check(state)
        if not text:
            return (0 if text is None else state), self.stacks.root
        for i in range(len(text)):
            state = self.next.at[256 * state + <unsigned char> text[i]]
            if self.found.at[state] >= 0:
                return -1, self.stacks.step_bytes(self.started(self.found.at[state]), text[i + 1:])
        return state, self.stacks.root

    def mask(self, Masks masks not None, int32_t state, uint32_t[::1] out not None):
        """Masks as `Masks.mask` does: all tokens but those that hold a trigger which goes on as the grammar doesn't
        allow."""
        cdef Py_ssize_t w, total = 0
        cdef int32_t token
        cdef int which
        masks.mask(0, out)                      # checks the size
        self.check(state)
        for token in range(masks.trie.n_vocab):
            out[token >> 5] |= <uint32_t> 1 << (token & 31)
        for which in range(3):
            self.walk(masks, which, state, &out[0])
        for w in range(masks.trie.n_words):
            total += int(out[w]).bit_count()
        return total

    cdef int walk(self, Masks masks, int which, int32_t state, uint32_t *out) except -1:
        cdef Trie *t = &masks.trie.trie[which]
        cdef Ints path = Ints(NULL, 0, 0)
        cdef int32_t i = 1
        cdef int32_t k
        try:
            fill(&path, masks.trie.max_depth + 1, state)
            while i < t.byte.n:
                state = self.next.at[256 * path.at[t.depth.at[i] - 1] + t.byte.at[i]]
                path.at[t.depth.at[i]] = state
                if self.found.at[state] < 0:
                    i += 1
                    continue
                for k in range(i + 1, t.skip.at[i]):
                    self.clear(masks, t, k, out)
                masks.walk.below(which, i, self.started(self.found.at[state]), out)
                i = t.skip.at[i]
        finally:
            drop(&path)
        return 0

    cdef int clear(self, Masks masks, Trie *t, int32_t i, uint32_t *out) except -1:
        cdef int32_t token = t.token.at[i]
        while token >= 0:
            out[token >> 5] &= ~(<uint32_t> 1 << (token & 31))
            token = masks.trie.next.at[token]
        return 0

    cdef int check(self, int32_t state) except -1:
        if not 0 <= state < self.found.n:
            raise IndexError(f"there is no state {state}")
        return 0
