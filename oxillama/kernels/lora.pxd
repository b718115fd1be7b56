from libc.stdint cimport int32_t, int64_t

from oxillama.kernels.matmul cimport Matrix


cdef class LowRank:
    cdef readonly Matrix a, b
    cdef readonly object table
    cdef readonly str type
    cdef readonly int64_t rank
    cdef readonly float scale


cdef class _Users:
    cdef readonly dict changes
    cdef readonly int64_t n
    cdef const int32_t *row
    cdef const float *scale
    cdef readonly object rows, scales
