from libc.stdint cimport int32_t

from oxillama.grammar.automata.nfa cimport Nfa
from oxillama.grammar.automata.vectors cimport Ints


cdef class LeftRecursion:
    cdef Nfa nfa
    cdef Ints recursive         # of each rule: group of rules that begin with each other, or -1
    cdef dict groups
    cdef Py_ssize_t converted
    cdef int left_calls(self, int32_t rule, Ints *out, Ints *seen, int32_t mark) except -1
    cdef int find_recursive(self) except -1
    cdef list group(self, int32_t rule)
    cdef int convert(self, int32_t goal) except -1
    cdef int32_t copy(self, int32_t s, bint begun, dict copies, list todo) except -1
    cdef int copy_edge(
        self, int32_t e, int32_t here, bint begun, int32_t group, dict copies, dict completed, list todo
    ) except -1
