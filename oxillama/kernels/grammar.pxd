from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama.kernels._vectors cimport Ints
from oxillama.kernels.grammar_automaton cimport Automaton
from oxillama.kernels.grammar_stacks cimport Stacks
from oxillama.kernels.grammar_trie cimport Trie, TokenTrie


cdef class Masks:
    cdef readonly Stacks stacks
    cdef readonly TokenTrie trie
    cdef readonly Py_ssize_t limit
    cdef Automaton automaton
    cdef dict _whole, _tops, _signatures
    cdef Py_ssize_t _whole_bytes, _tops_bytes
    cdef object _scratch, _path
    cdef uint32_t *scratch
    cdef int32_t *path
    cdef Ints escapes, level, following, open, steps
    cdef Py_ssize_t n_below
    cdef int find_steps(self) except -1
    cdef int fill_mask(self, int32_t node, uint32_t *out) except -1
    cdef int top_mask(self, int32_t state, int32_t below, uint32_t *out) except -1
    cdef object top_entry(self, int32_t state)
    cdef object make_entry(self, int32_t state)
    cdef int walk_all(self, int32_t node, uint32_t *out, bint escaping) except -1
    cdef int walk(self, int which, int32_t node, int32_t above, uint32_t *out, bint escaping) except -1
    cdef int plain_levels(self, int32_t node, bint escaping) except -2
    cdef int plain_character(self, int32_t node, bint escaping) except -1
    cdef int plain_step(self, Py_ssize_t step, int32_t node, bint escaping) except -1
    cdef int token_masks(self, int32_t state, uint32_t *out) except -1
    cdef object pack(self, const uint32_t *bits)
    cdef int unpack(self, object packed, uint32_t *out) except -1
    cdef object signature(self, int32_t item)
