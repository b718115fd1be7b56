/* Float matrix products of packed panels: one accumulator per output, columns added in order.
 * Included after q8.h, whose helpers it shares. */

/* Column i of a panel's half, for each stored type. */
INLINE vf column_F32(const uint8_t *panel, int64_t i, int half) { return vf_load((const float *)panel + 16 * i + half * VL); }
INLINE vf column_F16(const uint8_t *panel, int64_t i, int half) { return vf_from_half((const uint16_t *)panel + 16 * i + half * VL); }
INLINE vf column_BF16(const uint8_t *panel, int64_t i, int half)
{
    return vf_from_bf16_pair((const uint16_t *)panel + i / 2 * 32 + half * 2 * VL, (int)(i % 2));
}

typedef vf column_fn(const uint8_t *panel, int64_t i, int half);

/* P panels at once: a chain of additions is as long as the matrix is wide, so few tokens need several panels to keep
 * the adders busy. */
INLINE void panels_float(const ox_gemm_args *a, int64_t row, int64_t t0, const int P, const int T, column_fn *column)
{
    const float *x[TILE];
    const uint8_t *panel = (const uint8_t *)a->w + (size_t)(row / 16) * a->panel_bytes;
    vf acc[4 * NV][TILE];
    UNROLL for (int t = 0; t < T; t++)
        x[t] = (const float *)x_of(a, t0 + t);
    UNROLL for (int v = 0; v < P * NV; v++)
        UNROLL for (int t = 0; t < T; t++)
            acc[v][t] = vf_zero();
    for (int64_t i = 0; i < a->k; i++)
        UNROLL for (int v = 0; v < P * NV; v++) {
            vf w = column(panel + (size_t)(v / NV) * a->panel_bytes, i, v % NV);
            UNROLL for (int t = 0; t < T; t++)
                acc[v][t] = vf_fma(w, vf_set1(x[t][i]), acc[v][t]);
        }
    UNROLL for (int v = 0; v < P * NV; v++)
        UNROLL for (int t = 0; t < T; t++)
            store_rows(y_of(a, t0 + t, row + v * VL), acc[v][t], a->n_rows - row - v * VL, a->accumulate);
}

INLINE void tokens_float(const ox_gemm_args *a, int64_t t0, const int P, const int T, column_fn *column)
{
    int64_t row = 0;
    for (; row + 16 * P <= a->n_rows; row += 16 * P)
        panels_float(a, row, t0, P, T, column);
    for (; row < a->n_rows; row += 16)
        panels_float(a, row, t0, 1, T, column);
}

#define TAIL_FLOAT(name, T) case T: if (T < FLOAT_TILE) tokens_float(a, t, T == 1 ? 4 / NV : T < 4 ? 2 : 1, T, column_##name); break;

#define GEMM_FLOAT(name)                                                                \
    static void gemm_##name(const ox_gemm_args *a)                                      \
    {                                                                                   \
        int64_t t = 0;                                                                  \
        for (; t + FLOAT_TILE <= a->n_tokens; t += FLOAT_TILE)                          \
            tokens_float(a, t, 1, FLOAT_TILE, column_##name);                           \
        switch (a->n_tokens - t) {                                                      \
        TAIL_FLOAT(name, 7)                                                             \
        TAIL_FLOAT(name, 6)                                                             \
        TAIL_FLOAT(name, 5)                                                             \
        TAIL_FLOAT(name, 4)                                                             \
        TAIL_FLOAT(name, 3)                                                             \
        TAIL_FLOAT(name, 2)                                                             \
        TAIL_FLOAT(name, 1)                                                             \
        }                                                                               \
    }
