from libc.stdint cimport int32_t, uint32_t

from oxillama.grammar.automata.automaton cimport Automaton
from oxillama.grammar.automata.stacks cimport Stacks
from oxillama.grammar.automata.trie cimport TokenTrie
from oxillama.grammar.automata.walk cimport Walk


cdef class Masks:
    cdef readonly Stacks stacks
    cdef readonly TokenTrie trie
    cdef readonly Py_ssize_t limit
    cdef Automaton automaton
    cdef dict _whole, _tops, _signatures
    cdef Py_ssize_t _whole_bytes, _tops_bytes
    cdef Walk walk
    cdef object _scratch
    cdef uint32_t *scratch
    cdef int level              # the largest ready set in the mask under way
    cdef int fill_mask(self, int32_t node, uint32_t *out) except -1
    cdef int top_mask(self, tuple entry, int32_t below, uint32_t *out) except -1
    cdef object top_entry(self, int32_t state)
    cdef object make_entry(self, int32_t state)
    cdef int token_masks(self, int32_t state, uint32_t *out) except -1
    cdef object pack(self, const uint32_t *bits, int level)
    cdef int unpack(self, object packed, uint32_t *out, bint alone) except -1
    cdef object signature(self, int32_t item)
