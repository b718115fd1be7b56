/* Integer matrix products of packed panels: activations in 8 bits, weights as unsigned codes of up to 8 bits.
 *
 * One accumulator per output, chunks of 32 columns added in order: the result can't depend on how many tokens share a
 * tile. Each chunk's weights are unpacked to eight byte vectors, which all tokens of the tile then use from registers.
 * Included by each SIMD tier after its vocab.h. */
#include "../ox_blocks.h"
#include "../ox_kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define LOAD_F32(p, offset) vf_set1(*(const float *)((p) + (offset)))
#define LOAD_I32(p, offset) vi_set1(*(const int32_t *)((p) + (offset)))

/* A tile: up to TILE activation rows against the 16 / NV rows of one half (or whole) of a panel. */
#define TILE 8

typedef struct { const uint8_t *x[TILE]; int64_t k, nb; } q8_tile;

INLINE vi dot_chunk(vi s, const vb *w, const uint8_t *q, int from, int to)
{
    UNROLL for (int v = from; v < to; v++)
        s = vi_dot(s, w[v], vb_set4(q + 4 * v));
    return s;
}

/* y += scale * d * (sum(code q) - (sum(q) << shift)) */
INLINE void add_offset(const vb *w, vf scale, int shift, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    UNROLL for (int t = 0; t < T; t++) {
        vi s = vi_shl(LOAD_I32(x->x[t], x->k + 8 * x->nb + 4 * i), shift);
        s = dot_chunk(s, w, x->x[t] + 32 * i, 0, 8);
        acc[t] = vf_fma(vf_from_int(s), vf_mul(scale, LOAD_F32(x->x[t], x->k + 4 * i)), acc[t]);
    }
}

/* y += scale * d * sum(code q) for signed codes that need all eight bits, which come xor-ed with BYTE_SIGN: with 128
 * added, or, where vi_dot is exact for codes below 128 only, as they are, to be multiplied as signed bytes. */
#ifdef DOT_IS_7_BIT
#define BYTE_SIGN 0
INLINE void add_bytes(const vb *w, vf scale, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    UNROLL for (int t = 0; t < T; t++) {
        vi s = vi_zero();
        UNROLL for (int v = 0; v < 8; v++)
            s = vi_dot_signed(s, w[v], vb_set4(x->x[t] + 32 * i + 4 * v));
        acc[t] = vf_fma(vf_from_int(s), vf_mul(scale, LOAD_F32(x->x[t], x->k + 4 * i)), acc[t]);
    }
}
#else
#define BYTE_SIGN 0x80
INLINE void add_bytes(const vb *w, vf scale, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    add_offset(w, scale, 7, x, i, T, acc);
}
#endif

/* y += scale * d * sum(code q) - min * d * sum(q) */
INLINE void add_mins(const vb *w, vf scale, vf min, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    UNROLL for (int t = 0; t < T; t++) {
        vi s = dot_chunk(vi_zero(), w, x->x[t] + 32 * i, 0, 8);
        acc[t] = vf_fma(vf_from_int(s), vf_mul(scale, LOAD_F32(x->x[t], x->k + 4 * i)), acc[t]);
        acc[t] = vf_fnma(min, LOAD_F32(x->x[t], x->k + 4 * x->nb + 4 * i), acc[t]);
    }
}

/* y += scale * d * sum over halves h of scale_h * (sum_h(code q) - (sum_h(q) << shift)) */
INLINE void add_halves(const vb *w, vf scale, vi scale0, vi scale1, int shift, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    UNROLL for (int t = 0; t < T; t++) {
        vi s0 = vi_shl(LOAD_I32(x->x[t], x->k + 12 * x->nb + 4 * i), shift);
        vi s1 = vi_shl(LOAD_I32(x->x[t], x->k + 16 * x->nb + 4 * i), shift);
        s0 = dot_chunk(s0, w, x->x[t] + 32 * i, 0, 4);
        s1 = dot_chunk(s1, w, x->x[t] + 32 * i, 4, 8);
        vi s = vi_add(vi_mul(s0, scale0), vi_mul(s1, scale1));
        acc[t] = vf_fma(vf_from_int(s), vf_mul(scale, LOAD_F32(x->x[t], x->k + 4 * i)), acc[t]);
    }
}

INLINE void unpack_nibbles(const uint8_t qs[4][64], int half, vb *w)
{
    UNROLL for (int v = 0; v < 4; v++) {
        vb q = vb_load(qs[v] + half * VB);
        w[v] = vb_and(q, vb_set1(15));
        w[v + 4] = vb_and(vb_shr(q, 4), vb_set1(15));
    }
}

INLINE void tile_Q4_0(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q4_0x16 *b = panel;
    for (int64_t i = 0; i < x->nb; i++, b++) {
        vb w[8];
        unpack_nibbles(b->qs, half, w);
        add_offset(w, vf_from_half(b->d + half * VL), 3, x, i, T, acc);
    }
}

INLINE void tile_Q4_1(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q4_1x16 *b = panel;
    for (int64_t i = 0; i < x->nb; i++, b++) {
        vb w[8];
        unpack_nibbles(b->qs, half, w);
        vf min = vf_sub(vf_zero(), vf_from_half(b->m + half * VL));
        add_mins(w, vf_from_half(b->d + half * VL), min, x, i, T, acc);
    }
}

/* Bit v of `high` becomes the fifth bit of vector v. */
INLINE void unpack_fives(const uint8_t qs[4][64], const uint8_t qh[64], int half, vb *w)
{
    vb high = vb_load(qh + half * VB), bit4 = vb_set1(16);
    unpack_nibbles(qs, half, w);
    UNROLL for (int v = 0; v < 8; v++)
        w[v] = vb_or(w[v], vb_and(v < 4 ? vb_shl(high, 4 - v) : vb_shr(high, v - 4), bit4));
}

INLINE void tile_Q5_0(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q5_0x16 *b = panel;
    for (int64_t i = 0; i < x->nb; i++, b++) {
        vb w[8];
        unpack_fives(b->qs, b->qh, half, w);
        add_offset(w, vf_from_half(b->d + half * VL), 4, x, i, T, acc);
    }
}

INLINE void tile_Q5_1(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q5_1x16 *b = panel;
    for (int64_t i = 0; i < x->nb; i++, b++) {
        vb w[8];
        unpack_fives(b->qs, b->qh, half, w);
        vf min = vf_sub(vf_zero(), vf_from_half(b->m + half * VL));
        add_mins(w, vf_from_half(b->d + half * VL), min, x, i, T, acc);
    }
}

INLINE void tile_Q8_0(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q8_0x16 *b = panel;
    for (int64_t i = 0; i < x->nb; i++, b++) {
        vb w[8];
        UNROLL for (int v = 0; v < 8; v++)
            w[v] = vb_xor(vb_load(b->qs[v] + half * VB), vb_set1((char)(0x80 ^ BYTE_SIGN)));
        add_bytes(w, vf_from_half(b->d + half * VL), x, i, T, acc);
    }
}

INLINE void tile_Q4_K(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q4_kx16 *b = panel;
    for (int64_t i = 0; i < x->nb; b++) {
        vf d = vf_from_half(b->d + half * VL), dmin = vf_from_half(b->dmin + half * VL);
        for (int c = 0; c < 8; c++, i++) {
            vb w[8];
            unpack_nibbles(b->qs[c], half, w);
            vf scale = vf_mul(d, vf_from_int(vi_from_u8(b->scales[c] + half * VL)));
            vf min = vf_mul(dmin, vf_from_int(vi_from_u8(b->mins[c] + half * VL)));
            add_mins(w, scale, min, x, i, T, acc);
        }
    }
}

INLINE void tile_Q5_K(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q5_kx16 *b = panel;
    for (int64_t i = 0; i < x->nb; b++) {
        vf d = vf_from_half(b->d + half * VL), dmin = vf_from_half(b->dmin + half * VL);
        for (int c = 0; c < 8; c++, i++) {
            vb w[8];
            unpack_fives(b->qs[c], b->qh[c], half, w);
            vf scale = vf_mul(d, vf_from_int(vi_from_u8(b->scales[c] + half * VL)));
            vf min = vf_mul(dmin, vf_from_int(vi_from_u8(b->mins[c] + half * VL)));
            add_mins(w, scale, min, x, i, T, acc);
        }
    }
}

INLINE void tile_Q6_K(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q6_kx16 *b = panel;
    for (int64_t i = 0; i < x->nb; b++) {
        vf d = vf_from_half(b->d + half * VL);
        for (int c = 0; c < 8; c++, i++) {
            vb w[8], top = vb_set1(0x30);
            vb high[2] = {vb_load(b->qh[c][0] + half * VB), vb_load(b->qh[c][1] + half * VB)};
            unpack_nibbles(b->qs[c], half, w);
            UNROLL for (int v = 0; v < 8; v++) { /* bits 2s, 2s+1 go to bits 4, 5 */
                int s = 2 * (v / 2);
                w[v] = vb_or(w[v], vb_and(s < 4 ? vb_shl(high[v % 2], 4 - s) : vb_shr(high[v % 2], s - 4), top));
            }
            add_halves(w, d, vi_from_i8(b->scales[2 * c] + half * VL), vi_from_i8(b->scales[2 * c + 1] + half * VL), 5, x, i, T, acc);
        }
    }
}

/* Part of a panel's rows may lie beyond the matrix: n of them are stored. */
INLINE void store_rows(float *y, vf acc, int64_t n, int accumulate)
{
    if (n >= VL) {
        vf_store(y, accumulate ? vf_add(vf_load(y), acc) : acc);
        return;
    }
    float part[VL];
    vf_store(part, acc);
    for (int64_t r = 0; r < n; r++)
        y[r] = accumulate ? y[r] + part[r] : part[r];
}

INLINE float *y_of(const ox_gemm_args *a, int64_t t, int64_t row)
{
    return a->y + (size_t)(a->y_rows ? a->y_rows[t] : t) * a->y_stride + row;
}

INLINE const uint8_t *x_of(const ox_gemm_args *a, int64_t t)
{
    return (const uint8_t *)a->x + (size_t)(a->x_rows ? a->x_rows[t] : t) * a->x_bytes;
}

typedef void tile_fn(const void *panel, int half, const q8_tile *x, const int T, vf *acc);

INLINE void panels_q8(const ox_gemm_args *a, int64_t t0, const int T, tile_fn *tile)
{
    q8_tile x = {{0}, a->k, a->k / 32};
    UNROLL for (int t = 0; t < T; t++)
        x.x[t] = x_of(a, t0 + t);
    const uint8_t *panel = a->w;
    for (int64_t row = 0; row < a->n_rows; row += 16, panel += a->panel_bytes)
        for (int half = 0; half < NV; half++) {
            vf acc[TILE];
            UNROLL for (int t = 0; t < T; t++)
                acc[t] = vf_zero();
            tile(panel, half, &x, T, acc);
            UNROLL for (int t = 0; t < T; t++)
                store_rows(y_of(a, t0 + t, row + half * VL), acc[t], a->n_rows - row - half * VL, a->accumulate);
        }
}

/* The number of tokens in a tile is a constant in each call, so that the accumulators live in registers. */
#define GEMM_Q8(name)                                                                   \
    static void gemm_##name(const ox_gemm_args *a)                                      \
    {                                                                                   \
        int64_t t = 0;                                                                  \
        for (; t + TILE <= a->n_tokens; t += TILE)                                      \
            panels_q8(a, t, TILE, tile_##name);                                         \
        switch (a->n_tokens - t) {                                                      \
        case 7: panels_q8(a, t, 7, tile_##name); break;                                 \
        case 6: panels_q8(a, t, 6, tile_##name); break;                                 \
        case 5: panels_q8(a, t, 5, tile_##name); break;                                 \
        case 4: panels_q8(a, t, 4, tile_##name); break;                                 \
        case 3: panels_q8(a, t, 3, tile_##name); break;                                 \
        case 2: panels_q8(a, t, 2, tile_##name); break;                                 \
        case 1: panels_q8(a, t, 1, tile_##name); break;                                 \
        }                                                                               \
    }
