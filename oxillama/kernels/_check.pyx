"""Every slot of one tier's table on plain byte buffers, so that tests can compare tiers in one process.

Sizes are the caller's business: nothing is checked here. Buffers may start at any address.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from oxillama.kernels._table cimport (
    OX_ATTN_SPAN, OX_ATTN_TILE, find_kernel_format, format_info, ox_attn_args, ox_attn_end, ox_attn_first,
    ox_attn_scratch, ox_attn_state, ox_bf16_row_bytes, ox_gemm_args, ox_k_panel_bytes, ox_kernels, ox_kv_type,
    ox_q8_row_bytes, ox_v_panel_bytes, table_of,
)

from oxillama.kernels._table import tier_index


def q8_row_bytes(size_t k):
    """Bytes of an activation row of ``k`` values."""
    return ox_q8_row_bytes(k)


def bf16_row_bytes(size_t k):
    """Bytes of an activation row of ``k`` values in bfloat16."""
    return ox_bf16_row_bytes(k)


def packed_block(str type):
    """``(values, bytes)`` of a packed block."""
    i = find_kernel_format(type)
    return format_info(i).packed_values, format_info(i).packed_bytes


def attention_bytes(size_t rows, size_t k_dim, size_t v_dim):
    """``(scratch, one state)`` of a call with this many rows."""
    return 4 * ox_attn_scratch(rows, k_dim, v_dim), 4 * ox_attn_state(rows, v_dim)


def kv_panel_bytes(int kv_type, size_t k_dim, size_t v_dim):
    """``(keys, values)`` of 16 tokens of one head."""
    return ox_k_panel_bytes(<ox_kv_type>kv_type, k_dim), ox_v_panel_bytes(<ox_kv_type>kv_type, v_dim)


cdef class Tier:
    """The kernels of one tier by name; ConfigError if it can't run here."""

    cdef const ox_kernels *t

    def __init__(self, str name):
        self.t = table_of(tier_index(name))

    def dequantise(self, str type, const uint8_t[::1] src, uint8_t[::1] dst, int64_t n):
        self.t.dequantise[format_info(find_kernel_format(type)).kernel](&src[0], <float *>&dst[0], n)

    def quantise(self, str type, const uint8_t[::1] src, uint8_t[::1] dst, int64_t n):
        self.t.quantise[format_info(find_kernel_format(type)).kernel](<const float *>&src[0], &dst[0], n)

    def pack(self, str type, const uint8_t[::1] src, size_t stride, int64_t n_rows, int64_t k, uint8_t[::1] panel):
        self.t.pack[format_info(find_kernel_format(type)).kernel](&src[0], stride, n_rows, k, &panel[0])

    def gemm(self, str type, const uint8_t[::1] panels, size_t panel_bytes, int64_t k, int64_t n_rows,
             const uint8_t[::1] x, size_t x_bytes, uint8_t[::1] y, int64_t n_tokens, bint accumulate,
             const int32_t[::1] x_rows=None, const int32_t[::1] y_rows=None):
        """``type`` is a format, or "bf16 rows" for the slot that multiplies BF16 by such rows."""
        cdef ox_gemm_args a
        a.w, a.panel_bytes, a.k, a.n_rows, a.x, a.x_bytes = &panels[0], panel_bytes, k, n_rows, &x[0], x_bytes
        a.y, a.y_stride, a.n_tokens, a.accumulate = <float *>&y[0], <size_t>n_rows, n_tokens, accumulate
        a.from_memory = True
        a.x_rows = &x_rows[0] if x_rows is not None else NULL
        a.y_rows = &y_rows[0] if y_rows is not None else NULL
        if type == "bf16 rows":
            self.t.gemm_bf16(&a)
        else:
            self.t.gemm[format_info(find_kernel_format(type)).kernel](&a)

    @property
    def has_bf16(self):
        return self.t.gemm_bf16 != NULL

    def round_bf16(self, const uint8_t[::1] x, uint8_t[::1] row, int64_t k):
        self.t.round_bf16(<const float *>&x[0], &row[0], k)

    def quantise_q8(self, const uint8_t[::1] x, uint8_t[::1] row, int64_t k, int64_t first=0, n=None):
        """Columns ``first`` to ``first + n`` (default: all) of ``x``, which has k."""
        self.t.quantise_q8(<const float *>&x[0] + first, &row[0], k, first, k if n is None else n)

    def rms_norm(self, const uint8_t[::1] x, const uint8_t[::1] w, uint8_t[::1] y, int64_t n, float eps):
        self.t.rms_norm(<const float *>&x[0], <const float *>&w[0], <float *>&y[0], n, eps)

    def layer_norm(self, const uint8_t[::1] x, const uint8_t[::1] w, const uint8_t[::1] b, uint8_t[::1] y, int64_t n,
                   float eps):
        self.t.layer_norm(<const float *>&x[0], <const float *>&w[0] if w is not None else NULL,
                          <const float *>&b[0] if b is not None else NULL, <float *>&y[0], n, eps)

    def add(self, const uint8_t[::1] x, uint8_t[::1] y, int64_t n):
        self.t.add(<const float *>&x[0], <float *>&y[0], n)

    def mul(self, const uint8_t[::1] x, uint8_t[::1] y, int64_t n):
        self.t.mul(<const float *>&x[0], <float *>&y[0], n)

    def add_scaled(self, const uint8_t[::1] x, float a, uint8_t[::1] y, int64_t n):
        self.t.add_scaled(<const float *>&x[0], a, <float *>&y[0], n)

    def scale(self, uint8_t[::1] x, float a, int64_t n):
        self.t.scale(<float *>&x[0], a, n)

    def softcap(self, uint8_t[::1] x, float cap, int64_t n):
        self.t.softcap(<float *>&x[0], cap, n)

    def clamp(self, uint8_t[::1] x, float limit, int64_t n):
        self.t.clamp(<float *>&x[0], limit, n)

    def swiglu(self, const uint8_t[::1] gate, const uint8_t[::1] up, uint8_t[::1] y, int64_t n):
        self.t.swiglu(<const float *>&gate[0], <const float *>&up[0], <float *>&y[0], n)

    def geglu(self, const uint8_t[::1] gate, const uint8_t[::1] up, uint8_t[::1] y, int64_t n):
        self.t.geglu(<const float *>&gate[0], <const float *>&up[0], <float *>&y[0], n)

    def swiglu_oai(self, const uint8_t[::1] gate, const uint8_t[::1] up, uint8_t[::1] y, int64_t n, float alpha,
                   float limit):
        self.t.swiglu_oai(<const float *>&gate[0], <const float *>&up[0], <float *>&y[0], n, alpha, limit)

    def swiglu_limited(self, const uint8_t[::1] gate, const uint8_t[::1] up, uint8_t[::1] y, int64_t n, float limit):
        self.t.swiglu_limited(<const float *>&gate[0], <const float *>&up[0], <float *>&y[0], n, limit)

    def geglu_erf(self, const uint8_t[::1] gate, const uint8_t[::1] up, uint8_t[::1] y, int64_t n):
        self.t.geglu_erf(<const float *>&gate[0], <const float *>&up[0], <float *>&y[0], n)

    def reglu(self, const uint8_t[::1] gate, const uint8_t[::1] up, uint8_t[::1] y, int64_t n):
        self.t.reglu(<const float *>&gate[0], <const float *>&up[0], <float *>&y[0], n)

    def silu(self, uint8_t[::1] x, int64_t n):
        self.t.silu(<float *>&x[0], n)

    def gelu(self, uint8_t[::1] x, int64_t n):
        self.t.gelu(<float *>&x[0], n)

    def gelu_erf(self, uint8_t[::1] x, int64_t n):
        self.t.gelu_erf(<float *>&x[0], n)

    def relu(self, uint8_t[::1] x, int64_t n):
        self.t.relu(<float *>&x[0], n)

    def relu2(self, uint8_t[::1] x, int64_t n):
        self.t.relu2(<float *>&x[0], n)

    def xielu(self, uint8_t[::1] x, float p, float q, float beta, float eps, int64_t n):
        self.t.xielu(<float *>&x[0], n, p, q, beta, eps)

    def sigmoid(self, uint8_t[::1] x, int64_t n):
        self.t.sigmoid(<float *>&x[0], n)

    def softplus(self, uint8_t[::1] x, int64_t n):
        self.t.softplus(<float *>&x[0], n)

    def softmax(self, uint8_t[::1] x, int64_t n):
        self.t.softmax(<float *>&x[0], n)

    def rope_neox(self, uint8_t[::1] x, const uint8_t[::1] cos_sin, int64_t n_rot):
        self.t.rope_neox(<float *>&x[0], <const float *>&cos_sin[0], n_rot)

    def rope_norm(self, uint8_t[::1] x, const uint8_t[::1] cos_sin, int64_t n_rot):
        self.t.rope_norm(<float *>&x[0], <const float *>&cos_sin[0], n_rot)

    def store_key(self, int kv_type, const uint8_t[::1] x, uint8_t[::1] panel, int64_t lane, int64_t dim):
        self.t.store_key[kv_type](<const float *>&x[0], &panel[0], lane, dim)

    def store_value(self, int kv_type, const uint8_t[::1] x, uint8_t[::1] panel, int64_t lane, int64_t dim):
        self.t.store_value[kv_type](<const float *>&x[0], &panel[0], lane, dim)

    def to_f16(self, const uint8_t[::1] x, uint8_t[::1] y, int64_t n):
        self.t.to_f16(<const float *>&x[0], <uint16_t *>&y[0], n)

    def attention(self, const uint8_t[::1] q, uint8_t[::1] out, const uint8_t[::1] k, const uint8_t[::1] v,
                  const int32_t[::1] blocks, uint8_t[::1] scratch, uint8_t[::1] states, *, int kv_type,
                  int block_tokens, int n_queries, int group, int k_dim, int v_dim, int64_t pos, int64_t n_keys,
                  int64_t window=0, bint causal=True, bint chunked=False, float scale=1, float softcap=0,
                  float[::1] slopes=None, float[::1] sinks=None, const float[:, ::1] bias=None,
                  bint split=False):
        """One key/value head; ``q`` [n_queries, group, k_dim], ``out`` [n_queries, group, v_dim].

        ``split`` computes each span of keys by itself, in descending order, and merges their states.
        """
        cdef ox_attn_args a
        cdef int64_t i, n, first
        a.q, a.out, a.k, a.v = <const float *>&q[0], <float *>&out[0], &k[0], &v[0]
        a.q_stride, a.out_stride = <size_t>(group * k_dim), <size_t>(group * v_dim)
        a.k_block_bytes = <size_t>block_tokens // 16 * ox_k_panel_bytes(<ox_kv_type>kv_type, <size_t>k_dim)
        a.v_block_bytes = <size_t>block_tokens // 16 * ox_v_panel_bytes(<ox_kv_type>kv_type, <size_t>v_dim)
        a.blocks, a.block_tokens, a.kv_type = &blocks[0], block_tokens, kv_type
        a.n_queries, a.group, a.k_dim, a.v_dim = n_queries, group, k_dim, v_dim
        a.pos, a.n_keys, a.window, a.causal, a.scale, a.softcap = pos, n_keys, window, causal, scale, softcap
        a.chunked = chunked
        a.slopes = &slopes[0] if slopes is not None else NULL
        a.sinks = &sinks[0] if sinks is not None else NULL
        a.bias = &bias[0, 0] if bias is not None else NULL
        a.far = (bias.shape[1] + 1) // 2 - OX_ATTN_TILE if bias is not None else 0
        a.span, a.scratch = -1, <float *>&scratch[0]
        if not split:
            self.t.attention(&a)
            return
        first = ox_attn_first(&a, pos) // OX_ATTN_SPAN
        n = max(1, (ox_attn_end(&a, pos + n_queries - 1) + OX_ATTN_SPAN - 1) // OX_ATTN_SPAN - first)
        for i in reversed(range(n)):
            a.span = first + i
            a.state = <float *>&states[0] + i * <int64_t>ox_attn_state(<size_t>(n_queries * group), <size_t>v_dim)
            self.t.attention(&a)
        self.t.attention_merge(&a, n)
