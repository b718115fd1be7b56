from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from oxillama.grammar.automata.left_recursion cimport LeftRecursion
from oxillama.grammar.automata.nfa cimport Nfa
from oxillama.grammar.automata.vectors cimport Ints, Map


cdef enum:
    CONTROL_BUT = -2147483647 - 1   # any token that is no text but those whose entries follow, each EXCEPTED + id
    EXCEPTED = CONTROL_BUT + 1      # below ~id of any token

cdef inline bint excepted(int32_t entry) noexcept nogil:
    return EXCEPTED <= entry < EXCEPTED + (1 << 30)


cdef class Automaton:
    cdef Ints final             # of each state: its rule may end here
    cdef Ints edge_at, edge_range, edge_to      # state -> its edges: low << 8 | high, target
    cdef Ints call_at, call_start, call_to      # state -> its calls: where the callee starts, where to go on
    # state -> its tokens: id, ~id for any other, or CONTROL_BUT and what isn't meant
    cdef Ints token_at, token, token_to
    cdef Ints item, item_first                  # state -> rule as compiled; that -> its first state
    cdef readonly int32_t start
    cdef readonly bint nullable
    cdef readonly bint has_tokens
    cdef readonly int n_classes
    cdef uint8_t class_of[256]
    cdef uint8_t class_byte[256]
    # while it is built
    cdef Nfa nfa
    cdef LeftRecursion left
    cdef Ints rule_start, set_at, sets, mark, kernel, ranges, targets, important, pieces
    cdef Ints alone             # of each state of the nfa: the state behind an edge that leads there alone, or -1
    cdef Ints single            # of each state of the nfa: the state of the set that has it alone, or -1
    cdef Map known              # states of larger sets
    cdef Ints silent_at, silent     # of each state of the nfa, or -1: `find_silent`
    cdef Py_ssize_t n_important, work, looked_at, n_linked
    cdef int64_t most
    cdef int32_t stamp
    cdef bint split
    cdef int drop_work(self) noexcept
    cdef int build(self, int32_t root) except -1
    cdef int rule(self, int32_t rule) except -1
    cdef int link(self, int32_t rule, Automaton a) except -1
    cdef int attempt(self, int32_t rule) except -1
    cdef int reset(self, Py_ssize_t states, Py_ssize_t edges, Py_ssize_t calls, Py_ssize_t tokens) noexcept
    cdef int begin(self) except -1
    cdef int gather(self, int32_t s) except -1
    cdef int32_t find_silent(self, int32_t s) except -1
    cdef int keep(self, int32_t s) except -1
    cdef int32_t intern(self, bint fresh) except -1
    cdef int leave(self, int32_t local, int32_t first, int32_t end) except -1
    cdef bint leave_chain(self, int32_t local, int32_t end) except -1
    cdef Py_ssize_t byte_edges(self) except -1
    cdef int32_t behind_piece(self, int32_t piece) except -1
    cdef int32_t behind(self, int32_t to) except -1
    cdef int single_edges(self) except -1
    cdef int byte_edge(self, int low, int high, int32_t target) except -1
    cdef int other_edges(self, int kind) except -1
    cdef int32_t group_of(self, int32_t value, Ints *groups, Map *known) except -1
    cdef int other_edge(self, int kind, int32_t value, int32_t target) except -1
    cdef int64_t cost(self) noexcept
    cdef str named(self, int32_t rule)
    cdef int classes(self) except -1

    cdef inline bint excepts(self, Py_ssize_t e, int32_t state, int32_t token) noexcept:
        """Whether a token is one of those that the entry of tokens without text at a place doesn't mean."""
        while e + 1 < self.token_at.at[state + 1] and excepted(self.token.at[e + 1]):
            e += 1
            if self.token.at[e] == EXCEPTED + token:
                return True
        return False

    cdef inline bint is_last(self, int32_t state) noexcept:
        """Whether nothing is left of a rule in this state but its end."""
        return (
            self.final.at[state]
            and self.edge_at.at[state] == self.edge_at.at[state + 1]
            and self.call_at.at[state] == self.call_at.at[state + 1]
            and self.token_at.at[state] == self.token_at.at[state + 1]
        )
