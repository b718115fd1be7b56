/* The one header that Cython sees: formats, the argument structs of kernels, and the table of functions.
 *
 * Contract of every kernel (csrc/README.md says why):
 *   - no allocation, no threads, no global state, no errors: callers check shapes before they call;
 *   - an output row is a function of its own input row, in an order fixed by shapes alone;
 *   - bytes of tensors may start at any address, floats and activation rows at multiples of 4, packed panels at multiples
 *     of 64; nothing is read past the last byte of an input. */
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

typedef enum ox_tier { OX_TIER_SCALAR, OX_TIER_AVX2, OX_TIER_AVX512, OX_TIER_NEON, OX_TIER_NEON_DOT, OX_N_TIERS } ox_tier;

/* One activation row as the integer kernels read it: k codes, then five arrays of k / 32 words:
 *   float   d    scale
 *   float   ds   scale * sum of the codes
 *   int32_t n    minus the sum of the codes
 *   int32_t n0   minus the sum of the first 16 codes
 *   int32_t n1   minus the sum of the last 16 codes
 * A row that holds NaN or infinity gets NaN scales, so that it is not hidden. */
static inline size_t ox_q8_row_bytes(size_t k) { return (k + k / 32 * 20 + 63) / 64 * 64; }

/* One activation row of bfloat16, padded with a zero to whole pairs. */
static inline size_t ox_bf16_row_bytes(size_t k) { return (2 * k + 63) / 64 * 64; }

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
} ox_gemm_args;

/* Attention of n_queries consecutive positions of one sequence, for one key/value head and its group of query heads.
 * A block of tokens holds, per key/value head, keys as panels of 16 tokens [tokens/16][head_dim][16] and values as
 * rows [tokens][head_dim rounded up to 16]. */
typedef struct ox_attn_args {
    const float *q;           /* first query, first head of the group */
    size_t q_stride;          /* floats from one query to the next; heads follow each other */
    float *out;
    size_t out_stride;
    const void *k, *v;        /* this layer's slabs, moved on to this head */
    size_t k_block_bytes, v_block_bytes; /* from one block to the next */
    const int32_t *blocks;    /* block table of the sequence */
    int32_t block_tokens;     /* a multiple of 16 that divides 64 or is a multiple of it */
    int32_t n_queries, group, head_dim;
    int64_t pos;              /* absolute position of the first query; it sees keys 0..pos */
    int64_t window;           /* keys a query sees, itself included; 0: all */
    float scale;
    int32_t kv_f16;           /* element type of k and v: 0 float, 1 half */
    float *scratch;           /* ox_attn_scratch() floats */
} ox_attn_args;

#define OX_ATTN_TILE 64 /* keys in a tile; tile i is keys 64i..64i+63 */
static inline size_t ox_attn_scratch(size_t rows, size_t head_dim)
{ return rows * (OX_ATTN_TILE + (head_dim + 15) / 16 * 16 + 2 + 16); }

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
    /* activations for the integer kernels: columns first..first+n of a row of k, multiples of 32; x is the first */
    void (*quantise_q8)(const float *x, void *row, int64_t k, int64_t first, int64_t n);
    /* BF16 weights times activations rounded to bfloat16, nearest even, in rows of ox_bf16_row_bytes(k). NULL where the
     * CPU doesn't multiply bfloat16: there gemm[OX_BF16] is used, which takes float rows in every tier. */
    void (*round_bf16)(const float *x, void *row, int64_t k);
    ox_gemm_fn *gemm_bf16;
    /* rows */
    void (*rms_norm)(const float *x, const float *w, float *y, int64_t n, float eps);
    void (*add)(const float *x, float *y, int64_t n);                       /* y += x */
    void (*add_scaled)(const float *x, float a, float *y, int64_t n);       /* y += a x */
    void (*swiglu)(const float *gate, const float *up, float *y, int64_t n);/* y = silu(gate) up */
    void (*softmax)(float *x, int64_t n);
    void (*rope_neox)(float *x, const float *cos_sin, int64_t n_rot);       /* halves: (i, i + n_rot/2) */
    void (*rope_norm)(float *x, const float *cos_sin, int64_t n_rot);       /* pairs: (2i, 2i + 1) */
    /* attention */
    void (*kv_store_f32)(const float *x, void *k_panel, int64_t lane, int64_t head_dim);
    void (*kv_store_f16)(const float *x, void *k_panel, int64_t lane, int64_t head_dim);
    void (*to_f16)(const float *x, uint16_t *y, int64_t n);
    void (*attention)(const ox_attn_args *);
} ox_kernels;

/* tables[tier], each overlaying the one below; NULL for a tier that was not compiled. */
const ox_kernels *ox_table(ox_tier tier);
/* The highest tier that was compiled and that CPU and operating system can run. */
ox_tier ox_detect_tier(void);
const char *ox_tier_name(ox_tier tier);
const char *ox_compiler(void);

#ifdef __cplusplus
}
#endif
#endif
