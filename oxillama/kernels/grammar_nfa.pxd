from libc.stdint cimport int32_t, int64_t

from oxillama.kernels._vectors cimport Ints
from oxillama.kernels.grammar_rules cimport Rules

cdef enum Edge:
    EPS, BYTES, CALL, ONE_TOKEN, NOT_TOKEN, TAKEN       # TAKEN: a call with no way past it


cdef class Nfa:
    cdef Rules rules
    cdef Ints head              # of each state: its first edge, or -1
    cdef Ints next, kind, value, to     # of each edge; value: low << 8 | high, rule, or token
    cdef Ints start, end        # of each rule, or -1 where nothing asks for it
    cdef Ints inlined           # size of a rule that may be copied into loops, or 0
    cdef Ints nullable, fruitful    # of each rule
    cdef Ints good              # of each state: some way leads on to its rule's end
    cdef Ints recursive         # of each rule: group of rules that begin with each other, or -1
    cdef int32_t state(self) except -1
    cdef int edge(self, int32_t source, int kind, int32_t value, int32_t target) except -1
    cdef int use(self, int32_t rule, Ints *todo) except -1
    cdef int expand(self, int32_t expr, int32_t source, int32_t target, Ints *todo) except -1
    cdef int task(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times) except -1
    cdef int one(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times, Ints *todo) except -1
    cdef int chars(self, int32_t expr, int32_t source, int32_t target) except -1
    cdef int repeat(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times) except -1
    cdef int graph(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times) except -1
    cdef int find_inlined(self, int32_t root) except -1
    cdef int references(self, int32_t rule, Ints *out) except -1
    cdef int find_nullable(self) except -1
    cdef int find_good(self) except -1
    cdef int left_calls(self, int32_t rule, Ints *out, Ints *seen, int32_t mark) except -1
    cdef int find_recursive(self) except -1
    cdef dict groups
    cdef Py_ssize_t converted
    cdef list group(self, int32_t rule)
    cdef int convert(self, int32_t goal) except -1
    cdef int32_t copy(self, int32_t s, bint begun, dict copies, list todo) except -1
    cdef int copy_edge(
        self, int32_t e, int32_t here, bint begun, int32_t group, dict copies, dict completed, list todo
    ) except -1
