from libc.stdint cimport int32_t

from oxillama.grammar.automata.automaton cimport Automaton
from oxillama.grammar.automata.vectors cimport Ints, Map


cdef class Stacks:
    cdef readonly Automaton automaton
    cdef Ints at, top, below    # node -> its pairs (state, node of the stacks below it), by rising state
    cdef Ints ends              # of each node: the empty stack is among its stacks
    cdef Map nodes, unions, closures
    cdef Ints popped            # of each node: its stacks without their top, closed; or -1
    cdef Ints row               # of each node: its row of the table, or -1
    cdef Ints table             # rows of n_columns nodes, -1: not known yet
    cdef readonly int n_columns     # one for each class of bytes, and some for sets of characters
    cdef readonly int32_t root
    cdef Ints merged_top, merged_below, work, tasks
    cdef Py_ssize_t ceiling, most_known, threshold
    cdef Py_ssize_t n_passed    # what was looked at, for turns of other threads
    cdef int check_known(self) except -1
    cdef Py_ssize_t max_table
    cdef int32_t cons(self, const int32_t *top, const int32_t *below, Py_ssize_t n, bint ends) except -1
    cdef int32_t single(self, int32_t top, int32_t below) except -1
    cdef int32_t union(self, int32_t a, int32_t b) except -1
    cdef int32_t merge(self, int32_t a, int32_t b) except -2
    cdef int32_t known_union(self, int32_t a, int32_t b) noexcept
    cdef int32_t closure(self, int32_t state, int32_t below) except -1
    cdef int32_t pop(self, int32_t node) except -1
    cdef int evaluate(self, int32_t state, int32_t below) except -1
    cdef int32_t try_pop(self, int32_t node) except -2
    cdef int32_t try_closure(self, int32_t state, int32_t below) except -2
    cdef int32_t step(self, int32_t node, int byte) except -1
    cdef int32_t cached_step(self, int32_t node, int byte_class) except -1
    cdef int new_row(self, int32_t node) except -1
    cdef int begin(self) except -1
    cdef int start(self) except -1
    cdef int clear(self) noexcept
    cpdef int check(self, int32_t node) except -1
    cdef int32_t moved(self, Py_ssize_t start, Py_ssize_t n, bint ends) except -1
