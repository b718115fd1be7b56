from libc.stdint cimport int64_t

from oxillama.kernels.rows cimport Vector


cdef class Rwkv7:
    cdef readonly int64_t n_heads, width
    cdef readonly float eps
    cdef Vector w0, k_k, k_a, r_k, weight, bias, rest
