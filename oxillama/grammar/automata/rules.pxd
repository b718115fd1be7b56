from libc.stdint cimport int32_t, int64_t

from oxillama.grammar.automata.budget cimport Budget
from oxillama.grammar.automata.vectors cimport Ints

cdef enum Kind:
    RANGE, LITERAL, CHARS, SEQ, ALT, REPEAT, RULE, TOKEN, GRAPH, CONTROL


cdef class Rules:
    cdef Ints kind, a, b        # of each expression
    cdef Ints pool              # children, bytes and counts that expressions point into
    cdef Ints size              # states that an expression takes, saturating
    cdef Ints body              # expression of each rule, or -1
    cdef readonly list names
    cdef readonly dict automata
    cdef readonly int32_t copy_limit
    cdef readonly Budget budget
    cdef dict _memo, _repeats
    cdef int add(self, int kind, int32_t a, int32_t b, int64_t size) except -1
    cdef int group(self, int kind, object items) except -1
    cdef int two(self, int kind, int32_t first, int32_t second) except -1
    cdef int check(self, int32_t expr) except -1
    cpdef int new_rule(self, str name) except -1
    cpdef int define(self, int32_t rule, int32_t expr) except -1
    cpdef int rule(self, int32_t rule, int calls=*) except -1
    cdef int put_sequences(self, tuple sequences) except -1
    cdef int table(self, const Ints *edges, const Ints *final) except -1
