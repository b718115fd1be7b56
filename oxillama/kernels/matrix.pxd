from libc.stdint cimport int64_t, uint8_t

from oxillama.kernels._table cimport ox_gemm_fn
from oxillama.kernels.rows cimport Vector


cdef class Matrix:
    cdef readonly str name, type
    cdef readonly int64_t n_out, n_in, n_experts
    cdef readonly bint repacked
    cdef int kernel
    cdef ox_gemm_fn gemm
    cdef readonly bint integer      # reads 8-bit activations
    cdef readonly bint rounds       # reads bfloat16 ones: bits of their own
    cdef public bint from_memory    # from where each token reads it, since the caches of cores don't hold the model
    cdef readonly Vector bias
    cdef readonly size_t row_bytes
    cdef size_t panel_bytes
    cdef int64_t n_panels
    cdef const uint8_t *raw
    cdef uint8_t *packed
    cdef object _raw_owner, _packed_owner
    cdef readonly object pager      # reads the weights page by page; None: they are in memory, or mapped
    cdef int64_t first_page, page_panels
    cdef bint pages_in_panels
    cdef size_t _first_byte(self, int64_t i) noexcept nogil
    cdef void _pack(self, int64_t i) noexcept nogil
