from libc.stdint cimport int64_t

from oxillama.kernels.rows cimport Vector


cdef class ChannelDelta:
    cdef readonly int64_t n_heads, dim
    cdef readonly float eps, bound
    cdef Vector a, dt_bias, norm
