from libc.stdint cimport int32_t, int64_t

from oxillama.grammar.automata.vectors cimport Ints, Map

cdef enum:
    N_VECTORS = 26
    EMPTY = 0                   # kinds of empty moves: anywhere,
    START = 1                   # at the start of a text,
    STOP = 2                    # at its end


cdef object too_many_states()


cdef class CharTable:
    cdef Ints part              # of each state of the conditions: its condition. The first of N_VECTORS
    cdef Ints move_at, move_set, move_to        # state -> its moves: set of characters, target
    cdef Ints empty_at, empty_kind, empty_to    # state -> its empty moves
    cdef Ints covered_at, covered               # set of characters -> its symbols
    cdef Ints starts, ends, negated             # of each condition
    cdef Ints mark, last_mark, closed, targets, first, listed, present, sets    # work under way
    cdef Ints set_at, members                   # state of the table -> states of the conditions
    cdef Ints table, final, live                # what is made: rows, and of each state whether it may be the last
    cdef Ints edge                              # source, set of symbols, target
    cdef Map known
    cdef int n_symbols
    cdef readonly int64_t work
    cdef int64_t limit
    cdef int32_t stamp
    cdef int end_condition(self, int32_t start, int32_t end, bint negated) except -1
    cdef int spend(self, int64_t work, int64_t n_states) except -1
    cdef int close(self, Ints *states, Ints *mark, bint first, bint last) except -1
    cdef int load(self, int32_t state, Ints *out) except -1
    cdef int32_t intern(self, Ints *states) except -2
    cdef int explore(self) except -1
    cdef bint is_final(self) noexcept
    cdef int64_t gather(self) except -1
    cdef int leave(self) except -1
    cdef bint is_alike(self, int32_t a, int32_t b) noexcept
    cdef int find_live(self) except -1
    cdef int merge(self) except -1
    cdef int32_t alive_at(self, Py_ssize_t i) noexcept
    cdef int32_t class_of(self, int32_t state) except -1
    cdef int count(self, int32_t least, int32_t most) except -1
    cdef int32_t number(self, Ints *todo, int32_t state, int32_t length) except -1
    cdef int32_t division(self, int32_t state) except -1
    cdef list divided(self, dict places)
