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

/* Adds step i + odd to the sums of P panels and T tokens. The fewer of weights and activations wait in registers. */
INLINE void add_step(const uint8_t *panel, size_t panel_bytes, const float *const *x, int64_t i, const int odd,
                     const int P, const int T, step_fn *step, multiply_add_fn *multiply_add, vf (*acc)[FLOAT_TILE])
{
    vf w[4 * NV], xt[FLOAT_TILE];
    if (T < P * NV) {
        UNROLL for (int t = 0; t < T; t++)
            xt[t] = vf_set1(x[t][i + odd]);
        UNROLL for (int v = 0; v < P * NV; v++) {
            w[v] = step(panel + (size_t)(v / NV) * panel_bytes, i, odd, v % NV);
            UNROLL for (int t = 0; t < T; t++)
                acc[v][t] = multiply_add(w[v], xt[t], acc[v][t]);
        }
    } else {
        UNROLL for (int v = 0; v < P * NV; v++)
            w[v] = step(panel + (size_t)(v / NV) * panel_bytes, i, odd, v % NV);
        UNROLL for (int t = 0; t < T; t++) {
            xt[t] = vf_set1(x[t][i + odd]);
            UNROLL for (int v = 0; v < P * NV; v++)
                acc[v][t] = multiply_add(w[v], xt[t], acc[v][t]);
        }
    }
}

/* Adds steps 0 to n, of which x[t] begins with the first; two at a time where columns come in pairs. */
INLINE void add_columns(const uint8_t *panel, size_t panel_bytes, const float *const *x, int64_t n, const int paired,
                        const int P, const int T, step_fn *step, multiply_add_fn *multiply_add, vf (*acc)[FLOAT_TILE])
{
    int64_t i = 0;
    for (; paired && i + 2 <= n; i += 2) {
        add_step(panel, panel_bytes, x, i, 0, P, T, step, multiply_add, acc);
        add_step(panel, panel_bytes, x, i, 1, P, T, step, multiply_add, acc);
    }
    for (; i < n; i++)
        add_step(panel, panel_bytes, x, i, 0, P, T, step, multiply_add, acc);
}

/* n steps of P panels times T tokens. Sums are parked between calls; the first finds none. */
INLINE void tile_float(const uint8_t *panel, size_t panel_bytes, const float *const *x, int64_t n, float *park,
                       int first, const int paired, const int P, const int T, step_fn *step,
                       multiply_add_fn *multiply_add)
{
    vf acc[4 * NV][FLOAT_TILE];
    if (first) {
        UNROLL for (int v = 0; v < P * NV; v++)
            UNROLL for (int t = 0; t < T; t++)
                acc[v][t] = vf_zero();
    } else {
        UNROLL for (int v = 0; v < P * NV; v++)
            UNROLL for (int t = 0; t < T; t++)
                acc[v][t] = vf_load(park + t * PARK_STRIDE + v * VL);
    }
    add_columns(panel, panel_bytes, x, n, paired, P, T, step, multiply_add, acc);
    UNROLL for (int v = 0; v < P * NV; v++)
        UNROLL for (int t = 0; t < T; t++)
            vf_store(park + t * PARK_STRIDE + v * VL, acc[v][t]);
}

/* tile_float of a format; P and T are constants in it. */
typedef void tile_fn(const uint8_t *panel, size_t panel_bytes, const float *const *x, int64_t n, float *park,
                     int first);
/* Those of a format: for `wide` panels, and for one. */
typedef struct { tile_fn *wide[FLOAT_TILE], *one[FLOAT_TILE]; int paired; } tiles;

/* One token has one sum per vector of rows: it takes more panels, so that the adders need not wait for each other.
 * Where columns come in pairs, so do loaded weights, and three tokens have no room for them in 16 registers. */
#define WIDE(T, paired) ((T) < 4 - (paired) ? 4 / NV : FLOAT_PANELS)

/* All tokens of the call in one tile, panels from end to end, straight from memory. */
INLINE void few_tokens(const ox_gemm_args *a, int64_t n, const tiles *f)
{
    const int T = (int)a->n_tokens;
    _Alignas(64) float park[FLOAT_TILE * PARK_STRIDE];
    const float *x[FLOAT_TILE];
    const uint8_t *w = a->w;
    for (int t = 0; t < T; t++)
        x[t] = (const float *)x_of(a, t);
    for (int64_t row = 0; row < a->n_rows;) {
        int p = row + 16 * WIDE(T, f->paired) <= a->n_rows ? WIDE(T, f->paired) : 1;
        (p > 1 ? f->wide : f->one)[T - 1](w, a->panel_bytes, x, n, park, 1);
        for (int t = 0; t < T; t++)
            for (int r = 0; r < 16 * p; r += VL)
                store_rows(y_of(a, t, row + r), vf_load(park + t * PARK_STRIDE + r), a->n_rows - row - r,
                           a->accumulate);
        row += 16 * p;
        w += (size_t)p * a->panel_bytes;
    }
}

/* Panels of one tile times all tokens of a block, in tiles of nearly equal size. */
INLINE void panels_of_block(const uint8_t *panel, size_t panel_bytes, const float *copy, int64_t n, float *park,
                            int first, int tokens, tile_fn *const *f)
{
    for (int count = (tokens + FLOAT_TILE - 1) / FLOAT_TILE; count > 0; count--) {
        const float *x[FLOAT_TILE];
        int T = (tokens + count - 1) / count;
        for (int t = 0; t < T; t++)
            x[t] = copy + t * COPY_STRIDE;
        f[T - 1](panel, panel_bytes, x, n, park, first);
        tokens -= T;
        copy += T * COPY_STRIDE;
        park += T * PARK_STRIDE;
    }
}

/* Up to PANELS panels from row on, times up to TOKENS tokens from t0 on. */
INLINE void blocks_float(const ox_gemm_args *a, int64_t steps, int step_bytes, int64_t row, int64_t t0, int tokens,
                         const tiles *f)
{
    _Alignas(64) float copy[TOKENS * COPY_STRIDE], park[TOKENS * PARK_STRIDE];
    const uint8_t *w = (const uint8_t *)a->w + (size_t)(row / 16) * a->panel_bytes;
    int n_panels = a->n_rows - row > 16 * PANELS ? PANELS : (int)((a->n_rows - row + 15) / 16);
    for (int64_t k = 0; k == 0 || k < steps; k += BLOCK, w += BLOCK * step_bytes) {
        int64_t n = steps - k < BLOCK ? steps - k : BLOCK;
        for (int t = 0; t < tokens; t++)
            memcpy(copy + t * COPY_STRIDE, (const float *)x_of(a, t0 + t) + k, (size_t)n * sizeof *copy);
        for (int p = 0, step; p < n_panels; p += step) {
            step = p + FLOAT_PANELS <= n_panels ? FLOAT_PANELS : 1;
            panels_of_block(w + (size_t)p * a->panel_bytes, a->panel_bytes, copy, n, park + 16 * p, k == 0, tokens,
                            step > 1 ? f->wide : f->one);
        }
    }
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < 16 * n_panels; r += VL)
            store_rows(y_of(a, t0 + t, row + r), vf_load(park + t * PARK_STRIDE + r), a->n_rows - row - r,
                       a->accumulate);
}

INLINE void many_tokens(const ox_gemm_args *a, int64_t steps, int step_bytes, const tiles *f)
{
    for (int64_t row = 0; row < a->n_rows; row += 16 * PANELS)
        for (int64_t t = 0; t < a->n_tokens; t += TOKENS)
            blocks_float(a, steps, step_bytes, row, t, a->n_tokens - t < TOKENS ? (int)(a->n_tokens - t) : TOKENS, f);
}

_Static_assert(FLOAT_TILE == 6 && FLOAT_PANELS * NV <= 4,
               "GEMM_FLOAT makes tiles of up to six tokens and four vectors");
_Static_assert(FLOAT_PANELS == 1 || FLOAT_PANELS == WIDE(1, 0),
               "a tile of few tokens and one of many are the same function");

/* Each size is a function of its own, as in q8.h. */
#define TILE_FLOAT(kind, T, name, P, paired, step, multiply_add)                                                    \
    static __attribute__((noinline)) void kind##_##T##_##name(const uint8_t *panel, size_t panel_bytes,             \
                                                              const float *const *x, int64_t n, float *park,        \
                                                              int first)                                            \
    {                                                                                                               \
        tile_float(panel, panel_bytes, x, n, park, first, paired, P, T, step, multiply_add);                        \
    }
#define TILES_FLOAT(T, name, paired, ...) \
    TILE_FLOAT(wide, T, name, WIDE(T, paired), paired, __VA_ARGS__) TILE_FLOAT(one, T, name, 1, paired, __VA_ARGS__)
#define ALL_OF(kind, name) \
    {kind##_1_##name, kind##_2_##name, kind##_3_##name, kind##_4_##name, kind##_5_##name, kind##_6_##name}

/* A kernel of a float format of so many steps, of so many bytes each, which are columns that come in pairs or not. */
#define GEMM_FLOAT(name, steps, step_bytes, paired, ...)                                                            \
    TILES_FLOAT(1, name, paired, __VA_ARGS__) TILES_FLOAT(2, name, paired, __VA_ARGS__)                             \
    TILES_FLOAT(3, name, paired, __VA_ARGS__) TILES_FLOAT(4, name, paired, __VA_ARGS__)                             \
    TILES_FLOAT(5, name, paired, __VA_ARGS__) TILES_FLOAT(6, name, paired, __VA_ARGS__)                             \
    static void gemm_##name(const ox_gemm_args *a)                                                                  \
    {                                                                                                               \
        static const tiles all = {ALL_OF(wide, name), ALL_OF(one, name), paired};                                   \
        if (a->n_tokens > FLOAT_TILE)                                                                               \
            many_tokens(a, steps, step_bytes, &all);                                                                \
        else if (a->n_tokens > 0)                                                                                   \
            few_tokens(a, steps, &all);                                                                             \
    }
