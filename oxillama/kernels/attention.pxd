from libc.stdint cimport int64_t, uint8_t

from oxillama.kernels._table cimport ox_kv_type
from oxillama.kernels.batch cimport Batch, span
from oxillama.kernels.rows cimport Rows


cdef class KvSlab:
    cdef readonly object k, v
    cdef readonly int n_blocks, n_heads, k_dim, v_dim, block_tokens
    cdef readonly str kv_type
    cdef readonly bint windowed
    cdef ox_kv_type type
    cdef uint8_t *k_data
    cdef uint8_t *v_data
    cdef size_t k_head, v_head, k_panel, v_panel


cdef class Attention:
    cdef readonly float scale, softcap
    cdef readonly int64_t window
    cdef readonly bint causal, chunked
    cdef readonly object slopes, sinks, bias
    cdef const float *slope
    cdef const float *sink
    cdef const float *biases
    cdef int64_t far


cdef int check_tables(KvSlab s, Batch b, Rows rows, int head_dim, int64_t window) except -1
cdef int attend_spans(Rows q, Rows out, KvSlab slab, const span *spans, int n_spans, Attention rule) except -1
