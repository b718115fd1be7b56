/* Float matrix products of packed panels: one accumulator per output, steps added in order.
 *
 * A step is what one multiply-add per output takes: 16 rows of a column, or of two columns where pairs of bfloat16 are
 * multiplied. Panels times tokens of a tile keep their sums in registers. Few tokens pass a tile's panels from end to
 * end, straight from memory. Many are cut into blocks of steps, between which the sums wait in memory: so weights and
 * activations of a block are read from the nearest caches, however wide the matrix. Included after q8.h. */
#include <string.h>

#define BLOCK 256 /* steps */
#define TOKENS 24 /* that share a block of weights */
#define PANELS 16 /* that share a block of activations, copied once for them */
/* Copied rows lie 64 bytes off a power of two: at a matrix's own width, the rows of a tile often fall into the same
 * sets of the first-level cache. */
#define COPY_STRIDE (BLOCK + 16)
#define PARK_STRIDE (16 * PANELS)

/* Step i + odd of a panel's half, i being even, as multiply_add takes it. */
typedef vf step_fn(const uint8_t *panel, int64_t i, int odd, int half);
typedef vf multiply_add_fn(vf w, vf x, vf acc);

INLINE vf step_F32(const uint8_t *panel, int64_t i, int odd, int half)
{
    return vf_load((const float *)panel + 16 * (i + odd) + half * VL);
}
INLINE vf step_F16(const uint8_t *panel, int64_t i, int odd, int half)
{
    return vf_from_half((const uint16_t *)panel + 16 * (i + odd) + half * VL);
}
INLINE vf step_BF16(const uint8_t *panel, int64_t i, int odd, int half)
{
    return vf_from_bf16_pair((const uint16_t *)panel + 16 * i + half * 2 * VL, odd);
}

/* Adds step i + odd to the sums of P panels and T tokens. */
INLINE void add_step(const uint8_t *panel, size_t panel_bytes, const float *const *x, int64_t i, const int odd,
                     const int P, const int T, step_fn *step, multiply_add_fn *multiply_add, vf (*acc)[FLOAT_TILE])
{
    vf w[4 * NV];
    UNROLL for (int v = 0; v < P * NV; v++)
        w[v] = step(panel + (size_t)(v / NV) * panel_bytes, i, odd, v % NV);
    UNROLL for (int t = 0; t < T; t++) {
        vf xt = vf_set1(x[t][i + odd]);
        UNROLL for (int v = 0; v < P * NV; v++)
            acc[v][t] = multiply_add(w[v], xt, acc[v][t]);
    }
}

/* Adds steps 0 to n, of which x[t] begins with the first, two at a time: bfloat16 columns come in pairs. */
INLINE void add_columns(const uint8_t *panel, size_t panel_bytes, const float *const *x, int64_t n,
                      const int P, const int T, step_fn *step, multiply_add_fn *multiply_add, vf (*acc)[FLOAT_TILE])
{
    int64_t i = 0;
    for (; i + 2 <= n; i += 2) {
        add_step(panel, panel_bytes, x, i, 0, P, T, step, multiply_add, acc);
        add_step(panel, panel_bytes, x, i, 1, P, T, step, multiply_add, acc);
    }
    if (i < n)
        add_step(panel, panel_bytes, x, i, 0, P, T, step, multiply_add, acc);
}

/* P panels from row on for all T tokens of the call. */
INLINE void few_of_panels(const ox_gemm_args *a, int64_t n, int64_t row, const int P, const int T,
                          step_fn *step, multiply_add_fn *multiply_add)
{
    const float *x[FLOAT_TILE];
    vf acc[4 * NV][FLOAT_TILE];
    UNROLL for (int t = 0; t < T; t++)
        x[t] = (const float *)x_of(a, t);
    UNROLL for (int v = 0; v < P * NV; v++)
        UNROLL for (int t = 0; t < T; t++)
            acc[v][t] = vf_zero();
    add_columns((const uint8_t *)a->w + (size_t)(row / 16) * a->panel_bytes, a->panel_bytes, x, n, P, T, step, multiply_add, acc);
    UNROLL for (int v = 0; v < P * NV; v++)
        UNROLL for (int t = 0; t < T; t++)
            store_rows(y_of(a, t, row + v * VL), acc[v][t], a->n_rows - row - v * VL, a->accumulate);
}

/* One token has one sum per vector of rows: it takes more panels, so that the adders need not wait for each other. */
INLINE void few_tokens(const ox_gemm_args *a, int64_t n, const int T, step_fn *step, multiply_add_fn *multiply_add)
{
    const int P = T < 4 ? 4 / NV : FLOAT_PANELS;
    int64_t row = 0;
    for (; row + 16 * P <= a->n_rows; row += 16 * P)
        few_of_panels(a, n, row, P, T, step, multiply_add);
    for (; row < a->n_rows; row += 16)
        few_of_panels(a, n, row, 1, T, step, multiply_add);
}

/* P panels times T tokens of a block: x copied, sums parked. */
INLINE void tile_of_block(const uint8_t *panel, size_t panel_bytes, const float *copy, int64_t n, float *park,
                          const int P, const int T, step_fn *step, multiply_add_fn *multiply_add)
{
    const float *x[FLOAT_TILE];
    vf acc[4 * NV][FLOAT_TILE];
    UNROLL for (int t = 0; t < T; t++)
        x[t] = copy + t * COPY_STRIDE;
    UNROLL for (int v = 0; v < P * NV; v++)
        UNROLL for (int t = 0; t < T; t++)
            acc[v][t] = vf_load(park + t * PARK_STRIDE + v * VL);
    add_columns(panel, panel_bytes, x, n, P, T, step, multiply_add, acc);
    UNROLL for (int v = 0; v < P * NV; v++)
        UNROLL for (int t = 0; t < T; t++)
            vf_store(park + t * PARK_STRIDE + v * VL, acc[v][t]);
}

#define TILE_OF_BLOCK(T)                                                                                                \
    case T:                                                                                                             \
        if (T <= FLOAT_TILE)                                                                                            \
            tile_of_block(panel, panel_bytes, copy, n, park, P, T <= FLOAT_TILE ? T : 1, step, multiply_add);           \
        break;

/* P panels times all tokens of a block, in tiles of nearly equal size. */
INLINE void panels_of_block(const uint8_t *panel, size_t panel_bytes, const float *copy, int64_t n, float *park, int tokens,
                            const int P, step_fn *step, multiply_add_fn *multiply_add)
{
    for (int tiles = (tokens + FLOAT_TILE - 1) / FLOAT_TILE; tiles > 0; tiles--) {
        int t = (tokens + tiles - 1) / tiles;
        switch (t) {
        TILE_OF_BLOCK(1)
        TILE_OF_BLOCK(2)
        TILE_OF_BLOCK(3)
        TILE_OF_BLOCK(4)
        TILE_OF_BLOCK(5)
        TILE_OF_BLOCK(6)
        }
        tokens -= t;
        copy += t * COPY_STRIDE;
        park += t * PARK_STRIDE;
    }
}

/* Up to PANELS panels from row on, times up to TOKENS tokens from t0 on. */
INLINE void blocks_float(const ox_gemm_args *a, int64_t steps, int step_bytes, int64_t row, int64_t t0, int tokens,
                         step_fn *step, multiply_add_fn *multiply_add)
{
    _Alignas(64) float copy[TOKENS * COPY_STRIDE], park[TOKENS * PARK_STRIDE];
    const uint8_t *w = (const uint8_t *)a->w + (size_t)(row / 16) * a->panel_bytes;
    int n_panels = a->n_rows - row > 16 * PANELS ? PANELS : (int)((a->n_rows - row + 15) / 16);
    memset(park, 0, (size_t)(tokens * PARK_STRIDE) * sizeof *park);
    for (int64_t k = 0; k < steps; k += BLOCK, w += BLOCK * step_bytes) {
        int64_t n = steps - k < BLOCK ? steps - k : BLOCK;
        int p = 0;
        for (int t = 0; t < tokens; t++)
            memcpy(copy + t * COPY_STRIDE, (const float *)x_of(a, t0 + t) + k, (size_t)n * sizeof *copy);
        for (; p + FLOAT_PANELS <= n_panels; p += FLOAT_PANELS)
            panels_of_block(w + (size_t)p * a->panel_bytes, a->panel_bytes, copy, n, park + 16 * p, tokens, FLOAT_PANELS, step, multiply_add);
        for (; p < n_panels; p++)
            panels_of_block(w + (size_t)p * a->panel_bytes, a->panel_bytes, copy, n, park + 16 * p, tokens, 1, step, multiply_add);
    }
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < 16 * n_panels; r += VL)
            store_rows(y_of(a, t0 + t, row + r), vf_load(park + t * PARK_STRIDE + r), a->n_rows - row - r, a->accumulate);
}

INLINE void many_tokens(const ox_gemm_args *a, int64_t steps, int step_bytes, step_fn *step, multiply_add_fn *multiply_add)
{
    for (int64_t row = 0; row < a->n_rows; row += 16 * PANELS)
        for (int64_t t = 0; t < a->n_tokens; t += TOKENS)
            blocks_float(a, steps, step_bytes, row, t, a->n_tokens - t < TOKENS ? (int)(a->n_tokens - t) : TOKENS, step, multiply_add);
}

/* The switches hold tiles of up to six tokens. */
_Static_assert(FLOAT_TILE <= 6 && FLOAT_PANELS * NV <= 4, "a tile of the float kernels is too large");
#define FEW_TOKENS(T, steps, step, multiply_add) \
    case T: if (T <= FLOAT_TILE) { few_tokens(a, steps, T <= FLOAT_TILE ? T : 1, step, multiply_add); return; } break;

/* A kernel of a float format of so many steps, of so many bytes each. */
#define GEMM_FLOAT(name, steps, step_bytes, step, multiply_add) \
    static void gemm_##name(const ox_gemm_args *a)              \
    {                                                           \
        switch (a->n_tokens) {                                  \
        FEW_TOKENS(1, steps, step, multiply_add)                \
        FEW_TOKENS(2, steps, step, multiply_add)                \
        FEW_TOKENS(3, steps, step, multiply_add)                \
        FEW_TOKENS(4, steps, step, multiply_add)                \
        FEW_TOKENS(5, steps, step, multiply_add)                \
        FEW_TOKENS(6, steps, step, multiply_add)                \
        }                                                       \
        many_tokens(a, steps, step_bytes, step, multiply_add);  \
    }
