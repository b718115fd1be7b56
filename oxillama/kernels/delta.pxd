from libc.stdint cimport int64_t

from oxillama.kernels.rows cimport Vector


cdef class Delta:
    cdef readonly int64_t n_keys, n_heads, k_dim, v_dim, n_values
    cdef readonly bint neighbours
    cdef readonly float eps
    cdef Vector a, dt_bias, norm
