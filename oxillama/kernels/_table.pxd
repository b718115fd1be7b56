"""The C kernels as Cython sees them, and the table in use."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t


cdef extern from "ox_kernels.h" nogil:
    int OX_PANEL "16"

    ctypedef struct ox_format_info:
        const char *name
        int32_t id, values, bytes, packed_values, packed_bytes, kernel

    const ox_format_info ox_formats[]
    const int ox_n_formats

    ctypedef enum ox_tier:
        OX_TIER_SCALAR, OX_N_TIERS

    size_t ox_q8_row_bytes(size_t k)
    size_t ox_bf16_row_bytes(size_t k)

    ctypedef struct ox_gemm_args:
        const void *w
        size_t panel_bytes
        int64_t k
        int64_t n_rows
        const void *x
        size_t x_bytes
        const int32_t *x_rows
        float *y
        size_t y_stride
        const int32_t *y_rows
        int64_t n_tokens
        int32_t accumulate, from_memory

    ctypedef enum ox_kv_type:
        OX_KV_F32, OX_KV_F16, OX_KV_Q8_0, OX_KV_Q4_0, OX_N_KV_TYPES

    size_t ox_k_panel_bytes(ox_kv_type type, size_t dim)
    size_t ox_v_panel_bytes(ox_kv_type type, size_t dim)

    ctypedef struct ox_attn_args:
        const float *q
        size_t q_stride
        float *out
        size_t out_stride
        const void *k
        const void *v
        size_t k_block_bytes, v_block_bytes
        const int32_t *blocks
        int32_t block_tokens, kv_type
        int32_t n_queries, group, k_dim, v_dim
        int64_t pos, n_keys, window
        int32_t causal, chunked
        float scale, softcap
        const float *slopes
        const float *sinks
        const float *bias
        int64_t far
        int64_t span
        float *state
        float *scratch

    int OX_ATTN_TILE "64"
    int OX_ATTN_SPAN "512"
    size_t ox_attn_bias(int64_t far)
    int64_t ox_attn_first(const ox_attn_args *a, int64_t pos)
    int64_t ox_attn_end(const ox_attn_args *a, int64_t pos)
    size_t ox_attn_state(size_t rows, size_t v_dim)
    size_t ox_attn_scratch(size_t rows, size_t k_dim, size_t v_dim)

    ctypedef struct ox_conv1d_args:
        const float *x
        const float *in_gate
        const float *out_gate
        size_t x_stride
        const float *w
        const float *bias
        const float *read
        float *write
        size_t w_stride
        float *y
        size_t y_stride
        int64_t n_tokens, n_channels
        int32_t n_taps, silu

    ctypedef struct ox_scan_args:
        const float *x
        const float *dt
        const float *z
        const float *b
        const float *c
        size_t x_stride, dt_stride, z_stride, bc_stride
        const float *a
        const float *d
        const float *dt_bias
        const float *read
        float *write
        float *y
        size_t y_stride
        int64_t n_tokens, n_channels
        int32_t n_state, stream

    size_t ox_scan_state(size_t n_channels, size_t n_state)

    ctypedef struct ox_delta_args:
        const float *q
        const float *k
        const float *v
        const float *decay
        const float *beta
        size_t q_stride, k_stride, v_stride, decay_stride, beta_stride
        const float *read
        float *write
        float *y
        size_t y_stride
        int64_t n_tokens, k_dim, v_dim
        int32_t stream

    size_t ox_delta_state(size_t k_dim, size_t v_dim)

    ctypedef struct ox_dplr_args:
        const float *q
        const float *w
        const float *k
        const float *a
        const float *b
        const float *v
        size_t k_stride, v_stride
        const float *read
        float *write
        float *y
        size_t y_stride
        int64_t n_tokens, k_dim, v_dim
        int32_t stream

    ctypedef void (*ox_gemm_fn "ox_gemm_fn *")(const ox_gemm_args *) noexcept nogil

    ctypedef struct ox_kernels:
        const char *name
        void (*dequantise[0])(const void *src, float *dst, int64_t n) noexcept nogil
        void (*quantise[0])(const float *src, void *dst, int64_t n) noexcept nogil
        void (*pack[0])(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel) noexcept nogil
        ox_gemm_fn gemm[0]
        ox_gemm_fn gemm_rows[0]
        void (*quantise_q8)(const float *x, void *row, int64_t k, int64_t first, int64_t n) noexcept nogil
        void (*round_bf16)(const float *x, void *row, int64_t k) noexcept nogil
        ox_gemm_fn gemm_bf16
        ox_gemm_fn gemm_bf16_rows
        void (*rms_norm)(const float *x, const float *w, float *y, int64_t n, float eps) noexcept nogil
        void (*layer_norm)(const float *x, const float *w, const float *b, float *y, int64_t n,
                           float eps) noexcept nogil
        void (*add)(const float *x, float *y, int64_t n) noexcept nogil
        void (*mul)(const float *x, float *y, int64_t n) noexcept nogil
        void (*add_scaled)(const float *x, float a, float *y, int64_t n) noexcept nogil
        void (*scale)(float *x, float a, int64_t n) noexcept nogil
        void (*softcap)(float *x, float cap, int64_t n) noexcept nogil
        void (*clamp)(float *x, float limit, int64_t n) noexcept nogil
        void (*swiglu)(const float *gate, const float *up, float *y, int64_t n) noexcept nogil
        void (*geglu)(const float *gate, const float *up, float *y, int64_t n) noexcept nogil
        void (*swiglu_oai)(const float *gate, const float *up, float *y, int64_t n, float alpha,
                           float limit) noexcept nogil
        void (*swiglu_limited)(const float *gate, const float *up, float *y, int64_t n, float limit) noexcept nogil
        void (*geglu_erf)(const float *gate, const float *up, float *y, int64_t n) noexcept nogil
        void (*reglu)(const float *gate, const float *up, float *y, int64_t n) noexcept nogil
        void (*silu)(float *x, int64_t n) noexcept nogil
        void (*gelu)(float *x, int64_t n) noexcept nogil
        void (*gelu_erf)(float *x, int64_t n) noexcept nogil
        void (*relu)(float *x, int64_t n) noexcept nogil
        void (*relu2)(float *x, int64_t n) noexcept nogil
        void (*xielu)(float *x, int64_t n, float p, float q, float beta, float eps) noexcept nogil
        void (*sigmoid)(float *x, int64_t n) noexcept nogil
        void (*softplus)(float *x, int64_t n) noexcept nogil
        void (*softmax)(float *x, int64_t n) noexcept nogil
        void (*rope_neox)(float *x, const float *cos_sin, int64_t n_rot) noexcept nogil
        void (*rope_norm)(float *x, const float *cos_sin, int64_t n_rot) noexcept nogil
        void (*store_key[0])(const float *x, void *panel, int64_t lane, int64_t dim) noexcept nogil
        void (*store_value[0])(const float *x, void *panel, int64_t lane, int64_t dim) noexcept nogil
        void (*to_f16)(const float *x, uint16_t *y, int64_t n) noexcept nogil
        void (*attention)(const ox_attn_args *) noexcept nogil
        void (*attention_merge)(const ox_attn_args *, int64_t n) noexcept nogil
        void (*index_scores)(const ox_attn_args *, const float *weights, size_t stride) noexcept nogil
        void (*block_max)(const float *x, int64_t n, int64_t unit, float *y) noexcept nogil
        void (*choose)(const float *x, int64_t n, int64_t k, int32_t *chosen) noexcept nogil
        void (*gather_keys[0])(const void **panels, const int32_t *lanes, int64_t n, void *panel,
                               int64_t dim) noexcept nogil
        void (*gather_values[0])(const void **panels, const int32_t *lanes, int64_t n, void *panel,
                                 int64_t dim) noexcept nogil
        void (*conv1d)(const ox_conv1d_args *) noexcept nogil
        void (*scan1)(const ox_scan_args *) noexcept nogil
        void (*scan2)(const ox_scan_args *) noexcept nogil
        void (*delta)(const ox_delta_args *) noexcept nogil
        void (*dplr)(const ox_dplr_args *) noexcept nogil
        void (*decay)(const float *x, const float *bias, const float *a, float *y, int64_t n) noexcept nogil
        void (*bounded_decay)(const float *x, const float *bias, float a, float c, float *y,
                              int64_t n) noexcept nogil
        void (*l2_norm)(const float *x, float *y, int64_t n, float eps, float scale) noexcept nogil
        void (*gated_norm)(const float *x, const float *z, const float *w, float *y, int64_t n,
                           float eps) noexcept nogil

    const ox_kernels *ox_table(ox_tier tier)
    ox_tier ox_detect_tier()
    int ox_runs(ox_tier tier)
    const char *ox_tier_name(ox_tier tier)
    const char *ox_compiler()


# The table in use, for the other modules: the C objects are linked into this module only.
cdef const ox_kernels *table() noexcept nogil
cdef const ox_kernels *table_of(int tier) except NULL
cdef const ox_format_info *format_info(int index) noexcept nogil
cdef int find_format(str name) except -1
cdef int find_kernel_format(str name) except -1
