from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama.grammar.automata.automaton cimport Automaton
from oxillama.grammar.automata.stacks cimport Stacks
from oxillama.grammar.automata.trie cimport N_SHAPE_CLASSES, TokenTrie
from oxillama.grammar.automata.vectors cimport Ints

cdef enum:
    MUCH_BELOW = 4000           # nodes below escapes: from here on, walking whole stacks costs less


cdef class Walk:
    cdef Stacks stacks
    cdef TokenTrie trie
    cdef Automaton automaton
    cdef bint escaping          # notes in `escapes` where a stack may be empty in the middle of a token
    cdef Ints escapes           # (kind, place): see `below`
    cdef Py_ssize_t n_below     # nodes below them
    cdef Py_ssize_t n_passed    # nodes and tokens looked at, for turns of other threads
    cdef int n_classes, n_columns
    cdef int column_of[N_SHAPE_CLASSES]     # of a class of characters, in the table of steps
    cdef Ints groups[3]         # classes of bytes that make up a-z, A-Z, 0-9
    cdef Ints steps             # (phase, class of bytes, next phase) of plain characters, those of ASCII first
    cdef Py_ssize_t beyond_ascii
    cdef Ints path, shape_path, level, following, open
    cdef int whole(self, int32_t node, uint32_t *out, bint escaping) except -2
    cdef int below(self, int32_t kind, int32_t place, int32_t node, uint32_t *out) except -1
    cdef int find_steps(self) except -1
    cdef int add_step(self, int phase, int cls, int to) except -1
    cdef int texts(self, int which, int32_t node, int32_t i, int32_t last, uint32_t *out) except -1
    cdef int shapes(self, int which, int32_t node, int32_t above, uint32_t *out) except -1
    cdef int mixed(self, int which, int32_t node, int32_t i, uint32_t *out) except -1
    cdef int token(self, int32_t token, int32_t at, int32_t node, uint32_t *out) except -1
    cdef int32_t column(self, int32_t node, int column) except -1
    cdef int32_t alike(self, int32_t node, int group) except -1
    cdef int32_t beyond(self, int32_t node) except -1
    cdef int reach(self, int phase, int32_t node) except -1
    cdef int plain_levels(self, int32_t node) except -2
    cdef int plain_character(self, int32_t node) except -1
    cdef int plain_step(self, Py_ssize_t step, int32_t node) except -1
