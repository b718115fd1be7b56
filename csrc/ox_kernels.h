/* The one header that Cython sees: formats, the argument structs of kernels, and the table of functions.
 *
 * Contract of every kernel (csrc/README.md says why):
 *   - no allocation, no threads, no global state, no errors: callers check shapes before they call;
 *   - an output row is a function of its own input row, in an order fixed by shapes alone;
 *   - bytes of tensors may start at any address, floats and activation rows at multiples of 4, packed panels at
 *     multiples of 64; nothing is read past the last byte of an input. */
#ifndef OX_KERNELS_H
#define OX_KERNELS_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_format {
#define OX_KERNEL_FORMAT(name, id, values, bytes, pvalues, pbytes) OX_##name,
#define OX_NAMED_FORMAT(name, id, values, bytes)
#include "ox_formats.def"
    OX_N_KERNEL_FORMATS
};

typedef struct ox_format_info {
    const char *name;
    int32_t id;           /* in GGUF files */
    int32_t values;       /* in a block */
    int32_t bytes;        /* of a block */
    int32_t packed_values;/* in a packed block of 16 rows; 0: no kernels */
    int32_t packed_bytes; /* of a packed block of 16 rows */
    int32_t kernel;       /* enum ox_format, or -1 */
} ox_format_info;

extern const ox_format_info ox_formats[];
extern const int ox_n_formats;

/* Of one machine, lowest first; a CPU that runs one need not run those below it (ox_runs). */
typedef enum ox_tier {
    OX_TIER_SCALAR, OX_TIER_AVX2, OX_TIER_AVX_VNNI, OX_TIER_AVX512, OX_TIER_AMX, OX_TIER_NEON, OX_TIER_NEON_DOT,
    OX_TIER_NEON_I8MM, OX_N_TIERS
} ox_tier;

/* One activation row as the integer kernels read it: k codes, then five arrays of k / 32 words:
 *   float   d    scale
 *   float   ds   scale * sum of the codes
 *   int32_t n    minus the sum of the codes
 *   int32_t n0   minus the sum of the first 16 codes
 *   int32_t n1   minus the sum of the last 16 codes
 * A row that holds NaN or infinity gets NaN scales, so that it is not hidden. */
static inline size_t ox_q8_row_bytes(size_t k) { return (k + k / 32 * 20 + 63) / 64 * 64; }

/* One activation row of bfloat16, padded with a zero to whole pairs. An odd number of lines of the cache, so that rows
 * next to each other do not fall into the same few sets of it. */
static inline size_t ox_bf16_row_bytes(size_t k) { return ((2 * k + 63) / 64 | 1) * 64; }

/* y[yr(t)][0..n_rows) (+)= W x[xr(t)] for t < n_tokens, where W is a run of panels. */
typedef struct ox_gemm_args {
    const void *w;            /* first panel */
    size_t panel_bytes;       /* from one panel to the next */
    int64_t k;                /* columns */
    int64_t n_rows;           /* valid rows: the last panel may be partial */
    const void *x;            /* float rows, or rows of ox_q8_row_bytes(k) or ox_bf16_row_bytes(k) */
    size_t x_bytes;           /* from one row of x to the next */
    const int32_t *x_rows;    /* row of x for token t, or NULL: t */
    float *y;                 /* y[row][0] belongs to the first row of the first panel */
    size_t y_stride;          /* floats from one row of y to the next */
    const int32_t *y_rows;    /* row of y for token t, or NULL: t */
    int64_t n_tokens;
    int32_t accumulate;       /* add to y instead of setting it */
    int32_t from_memory;      /* where the weights come from, not from a core's own caches: worth asking for in time */
} ox_gemm_args;

/* How keys and values are stored. Blocks hold, per key/value head, panels of 16 tokens. Floats: keys [dim][16], values
 * [16][dim rounded up to 16]. Q8_0: codes with a half as the scale of each 32 values of a token (dim rounded up to 32):
 * keys [dim / 4][16 tokens][4], 128 added to each code, values [16 / 4 tokens][dim][4], then the scales [dim / 32][16].
 * Q4_0: the same for rotated vectors and codes of 4 bits (scalar/four_bits.h), those of 16 dimensions of each 32 in the
 * low halves of bytes and of the next 16 in the high ones: keys [dim / 32][4][16 tokens][4], values
 * [16 / 4 tokens][dim / 32][16][4]. */
typedef enum ox_kv_type { OX_KV_F32, OX_KV_F16, OX_KV_Q8_0, OX_KV_Q4_0, OX_N_KV_TYPES } ox_kv_type;

static inline size_t ox_round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
/* Of codes and scales, scored with 8-bit codes of a query. */
static inline int ox_kv_coded(int32_t type) { return type == OX_KV_Q8_0 || type == OX_KV_Q4_0; }
static inline size_t ox_k_panel_bytes(ox_kv_type type, size_t dim)
{
    if (ox_kv_coded(type))
        return ox_round_up(dim, 32) / 32 * 16 * (type == OX_KV_Q8_0 ? 34 : 18);
    return dim * (type == OX_KV_F16 ? 32 : 64);
}
static inline size_t ox_v_panel_bytes(ox_kv_type type, size_t dim)
{ return ox_k_panel_bytes(type, ox_round_up(dim, 16)); }

/* Attention of n_queries consecutive positions of one sequence, for one key/value head and its group of query heads. */
typedef struct ox_attn_args {
    const float *q;           /* first query, first head of the group */
    size_t q_stride;          /* floats from one query to the next; heads follow each other */
    float *out;
    size_t out_stride;
    const void *k, *v;        /* this layer's slabs, moved on to this head */
    size_t k_block_bytes, v_block_bytes; /* from one block to the next */
    const int32_t *blocks;    /* block table of the sequence */
    int32_t block_tokens;     /* a multiple of 16 that divides 64 or is a multiple of it */
    int32_t kv_type;          /* ox_kv_type */
    int32_t n_queries, group, k_dim, v_dim;
    int64_t pos;              /* absolute position of the first query; below zero it sees nothing, if causal */
    int64_t n_keys;           /* keys of the sequence */
    int64_t window;           /* |query - key| stays below it; 0: no limit */
    int32_t causal;           /* whether a query sees no key after itself */
    int32_t chunked;          /* window 0..window-1, window..2 window-1, ...: a query sees keys of its own, if causal */
    float scale, softcap;     /* scores are q k scale, then softcap tanh(score / softcap), if softcap > 0 */
    const float *slopes;      /* [group] or NULL: slope |query - key| is taken off (ALiBi) */
    const float *sinks;       /* [group] or NULL: a score that joins the sum of weights and has no value */
    const float *bias;        /* [group][ox_attn_bias(far)] or NULL: added to the score by its distance, key - query */
    int64_t far;              /* distances further than that, to either side, are taken for it */
    int64_t span;             /* keys span * OX_ATTN_SPAN and the following alone, left in `state`; -1: all, to `out` */
    float *state;             /* ox_attn_state() floats for a span */
    float *scratch;           /* ox_attn_scratch() floats */
} ox_attn_args;

#define OX_ATTN_TILE 64  /* keys in a tile; tile i is keys 64i..64i+63 */
#define OX_ATTN_SPAN 512 /* keys whose softmax is computed by itself, before spans are merged in ascending order */

/* Keys that the query at `pos` sees: first..end-1. */
static inline int64_t ox_attn_first(const ox_attn_args *a, int64_t pos)
{
    if (a->window <= 0 || pos < a->window)
        return 0;
    return a->chunked ? pos / a->window * a->window : pos + 1 - a->window;
}
static inline int64_t ox_attn_end(const ox_attn_args *a, int64_t pos)
{
    int64_t reach = a->causal ? 1 : a->window, end = reach > 0 && pos < a->n_keys - reach ? pos + reach : a->n_keys;
    return end < 0 ? 0 : end;
}
/* Biases of a head: those of distances -far - (OX_ATTN_TILE - 1) to far + OX_ATTN_TILE - 1, so that the keys of a tile
 * take consecutive ones, wherever they are. */
static inline size_t ox_attn_bias(int64_t far) { return (size_t)(2 * (far + OX_ATTN_TILE) - 1); }
/* Weighted values [rows][v_dim], maxima [rows] and sums [rows]; rows are queries times group. */
static inline size_t ox_attn_state(size_t rows, size_t v_dim)
{ return ox_round_up(rows * (ox_round_up(v_dim, 32) + 2), 16); }
/* Two states, queries, scores, corrections, a tile of keys and one of values, scales of values, one row of codes. */
static inline size_t ox_attn_scratch(size_t rows, size_t k_dim, size_t v_dim)
{
    size_t k = ox_round_up(k_dim, 32), v = ox_round_up(v_dim, 32);
    return 2 * ox_attn_state(rows, v_dim) + ox_round_up(rows, 16) * (k + OX_ATTN_TILE + 1) + OX_ATTN_TILE * (k + 2 * v)
           + 2 * k + 64;
}

/* index_scores: scores by which a query's keys are chosen (DeepSeek-AI, "DeepSeek-V3.2", 2025), of `a` alone queries,
 * keys, positions, scale and scratch, for values of no width, and of keys span * OX_ATTN_SPAN to n_keys alone. With
 * weights of each query and its heads, those of queries `stride` floats apart,
 *   out[query][key] = sum over heads of weights[query][head] max(scale q[query][head] k[key], 0)
 * and without, out[query group + head][key] = scale q[query][head] k[key]; rows of `out` are out_stride floats
 * apart. Keys that a query doesn't see get none. */

/* Causal depthwise convolution of consecutive tokens of one sequence:
 *   y[t][c] = out_gate[t][c] f(bias[c] + sum over k of w[k][c] u[t - n_taps + 1 + k][c])
 * where u[t][c] = in_gate[t][c] x[t][c] and f is silu or nothing. The inputs before the first token are `read`, the
 * last ones go to `write`. */
typedef struct ox_conv1d_args {
    const float *x;           /* first token, first channel */
    const float *in_gate, *out_gate; /* NULL: ones */
    size_t x_stride;          /* floats from one token to the next, of all three */
    const float *w;           /* [n_taps][w_stride] */
    const float *bias;        /* or NULL */
    const float *read;        /* u of the last n_taps - 1 tokens before, [n_taps - 1][w_stride]; NULL: zeros */
    float *write;             /* the same after the last token; shares nothing with `read` */
    size_t w_stride;
    float *y;
    size_t y_stride;
    int64_t n_tokens, n_channels;
    int32_t n_taps, silu;
} ox_conv1d_args;

/* A selective scan over consecutive tokens of one sequence. Each channel keeps n_state values h, and for each token
 *   h[i] = exp(step a[i]) h[i] + step x b[i],   y = (d x + sum over i of c[i] h[i]) silu(z)
 * where step = softplus(dt + bias).
 * States lie in panels of 16 channels, [n_state][16], so that lane = channel and no sum is horizontal; the last
 * panel is padded. In scan1 (Gu and Dao, "Mamba", 2023) dt, its bias, a and d belong to a channel, and channels
 * begin with a panel; in scan2 (Dao and Gu, "Transformers are SSMs", 2024) all channels of a call, a head, share one
 * value of each. */
typedef struct ox_scan_args {
    const float *x, *dt, *z;  /* first token, first channel; z NULL: no gate */
    const float *b, *c;       /* [n_state] of the first token */
    size_t x_stride, dt_stride, z_stride, bc_stride; /* floats from one token to the next */
    const float *a;           /* scan1: panels [n_state][16]; scan2: one value */
    const float *d, *dt_bias; /* dt_bias NULL: none */
    const float *read;        /* panels of the state before the first token; NULL: zeros */
    float *write;             /* panels of the state after the last one, at a multiple of 64 bytes; not `read` */
    float *y;
    size_t y_stride;
    int64_t n_tokens, n_channels;
    int32_t n_state;
    int32_t stream;           /* write past the caches: the state is read again only after more than they hold */
} ox_scan_args;

static inline size_t ox_scan_state(size_t n_channels, size_t n_state) { return ox_round_up(n_channels, 16) * n_state; }

/* The gated delta rule over consecutive tokens of one sequence, for one head (Yang, Kautz and Hatamizadeh, "Gated Delta
 * Networks", 2024). The head keeps a matrix S of k_dim rows and v_dim columns, and for each token
 *   u = beta (v - decay S^T k),   S = decay S + k u^T,   y = S^T q
 * What is kept is S / g in panels of 16 columns, [k_dim][16], so that lane = column and no sum is horizontal, the last
 * panel padded, and behind them g: the product of the decays since S was last multiplied by it, which is done before a
 * token that makes it less than OX_DELTA_LEAST. So a decay costs no multiplication of each value. */
typedef struct ox_delta_args {
    const float *q, *k, *v;   /* of the first token */
    const float *decay, *beta; /* one value for each token */
    size_t q_stride, k_stride, v_stride, decay_stride, beta_stride; /* floats from one token to the next */
    const float *read;        /* ox_delta_state() floats, of before the first token; NULL: zeros */
    float *write;             /* the same after the last one, at a multiple of 64 bytes; not `read` */
    float *y;
    size_t y_stride;
    int64_t n_tokens, k_dim, v_dim;
    int32_t stream;           /* write past the caches: the state is read again only after more than they hold */
} ox_delta_args;

#define OX_DELTA_LEAST 0x1p-40f
static inline size_t ox_delta_state(size_t k_dim, size_t v_dim) { return ox_round_up(v_dim, 16) * k_dim + 16; }

/* The delta rule whose change of the state is diagonal plus a matrix of rank one, over consecutive tokens of one
 * sequence, for one head (Peng et al., "RWKV-7 Goose", 2025). The head keeps a matrix S of k_dim rows and v_dim
 * columns, and for each token
 *   S = diag(w) S + a (b^T S) + k v^T,   y = S^T q
 * with the old S on the right. It lies in panels of 16 columns, [k_dim][16], the last one padded. */
typedef struct ox_dplr_args {
    const float *q, *w, *k, *a, *b; /* [k_dim] of the first token */
    const float *v;           /* [v_dim] */
    size_t k_stride, v_stride; /* floats from one token to the next: of the five, and of v */
    const float *read;        /* panels of the state before the first token; NULL: zeros */
    float *write;             /* the same after the last one, at a multiple of 64 bytes; not `read` */
    float *y;
    size_t y_stride;
    int64_t n_tokens, k_dim, v_dim;
    int32_t stream;           /* write past the caches: the state is read again only after more than they hold */
} ox_dplr_args;

typedef void ox_dequantise_fn(const void *src, float *dst, int64_t n);
typedef void ox_quantise_fn(const float *src, void *dst, int64_t n);
/* Interleaves n_rows <= 16 rows (stride bytes apart, k values each) to one panel; missing rows become zeros. */
typedef void ox_pack_fn(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel);
typedef void ox_gemm_fn(const ox_gemm_args *);

typedef struct ox_kernels {
    const char *name;
    /* tensor formats */
    ox_dequantise_fn *dequantise[OX_N_KERNEL_FORMATS];
    ox_quantise_fn *quantise[OX_N_KERNEL_FORMATS]; /* NULL: we don't write this format */
    ox_pack_fn *pack[OX_N_KERNEL_FORMATS];
    ox_gemm_fn *gemm[OX_N_KERNEL_FORMATS];
    /* The same with n_rows, a multiple of 16, as files store them, panel_bytes those of 16: bits of `pack` and
     * `gemm`. NULL where that isn't faster for few tokens. */
    ox_gemm_fn *gemm_rows[OX_N_KERNEL_FORMATS];
    /* activations for the integer kernels: columns first..first+n of a row of k, multiples of 32; x is the first */
    void (*quantise_q8)(const float *x, void *row, int64_t k, int64_t first, int64_t n);
    /* BF16 weights times activations rounded to bfloat16, nearest even, in rows of ox_bf16_row_bytes(k). NULL where the
     * CPU doesn't multiply bfloat16: there gemm[OX_BF16] is used, which takes float rows in every tier. */
    void (*round_bf16)(const float *x, void *row, int64_t k);
    ox_gemm_fn *gemm_bf16, *gemm_bf16_rows; /* of panels; and as gemm_rows, which may be NULL alone */
    /* rows */
    void (*rms_norm)(const float *x, const float *w, float *y, int64_t n, float eps);
    /* w and b may be NULL */
    void (*layer_norm)(const float *x, const float *w, const float *b, float *y, int64_t n, float eps);
    void (*add)(const float *x, float *y, int64_t n);                       /* y += x */
    void (*mul)(const float *x, float *y, int64_t n);                       /* y *= x */
    void (*add_scaled)(const float *x, float a, float *y, int64_t n);       /* y += a x */
    void (*scale)(float *x, float a, int64_t n);                            /* x *= a */
    void (*softcap)(float *x, float cap, int64_t n);                        /* x = cap tanh(x / cap) */
    void (*clamp)(float *x, float limit, int64_t n);                        /* to -limit..limit */
    void (*swiglu)(const float *gate, const float *up, float *y, int64_t n);/* y = silu(gate) up */
    void (*geglu)(const float *gate, const float *up, float *y, int64_t n); /* y = gelu(gate) up */
    /* y = gate sigmoid(alpha gate) (up + 1), gate clamped above to limit, up to -limit..limit */
    void (*swiglu_oai)(const float *gate, const float *up, float *y, int64_t n, float alpha, float limit);
    /* y = min(silu(gate), limit) up, up clamped to -limit..limit */
    void (*swiglu_limited)(const float *gate, const float *up, float *y, int64_t n, float limit);
    void (*geglu_erf)(const float *gate, const float *up, float *y, int64_t n); /* y = gelu_erf(gate) up */
    void (*reglu)(const float *gate, const float *up, float *y, int64_t n); /* y = max(gate, 0) up */
    void (*silu)(float *x, int64_t n);                                      /* x sigmoid(x) */
    void (*gelu)(float *x, int64_t n);                                      /* with tanh */
    void (*gelu_erf)(float *x, int64_t n);                                  /* with the error function */
    void (*relu)(float *x, int64_t n);                                      /* max(x, 0) */
    void (*relu2)(float *x, int64_t n);                                     /* max(x, 0)^2 */
    /* p x^2 + beta x above zero, q (exp(min(x, eps)) - 1 - x) + beta x below */
    void (*xielu)(float *x, int64_t n, float p, float q, float beta, float eps);
    void (*sigmoid)(float *x, int64_t n);
    void (*softplus)(float *x, int64_t n);                                  /* ln(1 + exp(x)) */
    void (*softmax)(float *x, int64_t n);
    void (*rope_neox)(float *x, const float *cos_sin, int64_t n_rot);       /* halves: (i, i + n_rot/2) */
    void (*rope_norm)(float *x, const float *cos_sin, int64_t n_rot);       /* pairs: (2i, 2i + 1) */
    /* attention */
    void (*store_key[OX_N_KV_TYPES])(const float *x, void *panel, int64_t lane, int64_t dim);
    void (*store_value[OX_N_KV_TYPES])(const float *x, void *panel, int64_t lane, int64_t dim);
    void (*to_f16)(const float *x, uint16_t *y, int64_t n);
    void (*attention)(const ox_attn_args *);
    /* n consecutive spans' states, ox_attn_state() floats apart from a->state on, to a->out; the first is
     * overwritten. */
    void (*attention_merge)(const ox_attn_args *a, int64_t n);
    /* choice of keys */
    void (*index_scores)(const ox_attn_args *a, const float *weights, size_t stride);
    /* y[i] is the largest of x[i unit] and those that follow it, unit of them or as many as are left of n; NaN if
     * one is */
    void (*block_max)(const float *x, int64_t n, int64_t unit, float *y);
    /* The places of the k <= n largest, ascending. Of equal ones those in front are taken; NaN is larger than all. */
    void (*choose)(const float *x, int64_t n, int64_t k, int32_t *chosen);
    /* Keys or values from lanes[i] of panels[i] to lane i of another panel, n <= 16 of them, as they are stored. */
    void (*gather_keys[OX_N_KV_TYPES])(const void *const *panels, const int32_t *lanes, int64_t n, void *panel,
                                       int64_t dim);
    void (*gather_values[OX_N_KV_TYPES])(const void *const *panels, const int32_t *lanes, int64_t n, void *panel,
                                         int64_t dim);
    /* recurrent layers */
    void (*conv1d)(const ox_conv1d_args *);
    void (*scan1)(const ox_scan_args *);
    void (*scan2)(const ox_scan_args *);
    void (*delta)(const ox_delta_args *);
    void (*dplr)(const ox_dplr_args *);
    /* y = exp(a softplus(x + bias)) */
    void (*decay)(const float *x, const float *bias, const float *a, float *y, int64_t n);
    /* y = exp(c sigmoid(a (x + bias))) */
    void (*bounded_decay)(const float *x, const float *bias, float a, float c, float *y, int64_t n);
    /* y = scale x / sqrt(sum(x^2) + eps) */
    void (*l2_norm)(const float *x, float *y, int64_t n, float eps, float scale);
    /* y = x / sqrt(mean(x^2) + eps) w silu(z) */
    void (*gated_norm)(const float *x, const float *z, const float *w, float *y, int64_t n, float eps);
} ox_kernels;

/* tables[tier], each overlaying the one below; NULL for a tier that was not compiled, or whose state the system refuses
 * to this process: it is asked for that here. */
const ox_kernels *ox_table(ox_tier tier);
/* Whether a tier was compiled, CPU and operating system can run it, and its state wasn't refused. */
int ox_runs(ox_tier tier);
/* The highest one of those that has a table. */
ox_tier ox_detect_tier(void);
const char *ox_tier_name(ox_tier tier);
const char *ox_compiler(void);

#ifdef __cplusplus
}
#endif
#endif
