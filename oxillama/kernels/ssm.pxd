from libc.stdint cimport int64_t

from oxillama.kernels.rows cimport Vector


cdef class Convolution:
    cdef readonly int64_t n_channels, n_values
    cdef readonly int n_taps
    cdef readonly bint silu
    cdef Vector w, bias


cdef class Scan1:
    cdef readonly int64_t n_channels, n_values
    cdef readonly int n_state
    cdef Vector a, d


cdef class Scan2:
    cdef readonly int64_t n_channels, n_values
    cdef readonly int n_heads, n_groups, n_state, head_dim
    cdef Vector a, d, dt_bias
