from libc.stdint cimport int32_t, int64_t

from oxillama.kernels.rows cimport Rows, Workspace


cdef class Routing:
    cdef readonly int64_t n, k, n_experts
    cdef readonly Workspace workspace
    cdef Rows _memory
    cdef int32_t *chosen        # [n, k]
    cdef float *shares          # [n, k]
    cdef int32_t *pair_of       # pairs, grouped by expert, in their order
    cdef int32_t *row_of        # the rows of these pairs
    cdef int32_t *first         # [n_experts + 1]: where in these an expert's begin; and one word to sort with
    cdef int32_t[::1] _words(self, void *start, int64_t n)
