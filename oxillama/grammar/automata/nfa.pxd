from libc.stdint cimport int32_t, int64_t

from oxillama.grammar.automata.rules cimport Rules
from oxillama.grammar.automata.vectors cimport Ints

cdef enum Edge:
    EPS, BYTES, CALL, ONE_TOKEN, NOT_TOKEN, TAKEN, NO_TEXT      # TAKEN: a call with no way past it


cdef enum:
    MAX_CONVERTED = 1 << 20     # edges in the copies of groups of rules that begin with each other

cdef object too_large()


cdef class Nfa:
    cdef Rules rules
    cdef Ints head              # of each state: its first edge, or -1
    cdef Ints next, kind, value, to     # of each edge; value: low << 8 | high, rule, token, or expr
    cdef Ints start, end        # of each rule, or -1 where nothing asks for it
    cdef Ints inlined           # size of a rule that may be copied into loops, or 0
    cdef Ints looked_at         # of each expression the rule that it was last looked at for
    cdef Ints nullable, fruitful    # of each rule
    cdef Ints good              # of each state: some way leads on to its rule's end
    cdef Py_ssize_t most        # states and edges that the budget allows
    cdef Ints recipe_of         # of each expression its place in `recipe`, or -1
    cdef Ints recipe
    cdef int32_t state(self) except -1
    cdef int settle(self) except -1
    cdef int edge(self, int32_t source, int kind, int32_t value, int32_t target) except -1
    cdef int use(self, int32_t rule, Ints *todo) except -1
    cdef int expand(self, int32_t expr, int32_t source, int32_t target, Ints *todo) except -1
    cdef int task(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times) except -1
    cdef int one(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times, Ints *todo) except -1
    cdef int chars(self, int32_t expr, int32_t source, int32_t target) except -1
    cdef int32_t chars_recipe(self, int32_t expr) except -1
    cdef int repeat(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times) except -1
    cdef int graph(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times) except -1
    cdef int find_inlined(self, int32_t root) except -1
    cdef int references(self, int32_t rule, Ints *out) except -1
    cdef int find_nullable(self) except -1
    cdef int find_good(self) except -1
