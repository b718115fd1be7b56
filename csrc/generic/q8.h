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

/* Activation rows of the tokens of a tile, from the first chunk of a strip on: x[t] codes, `words` bytes from there the
 * scales of those chunks, nb the chunks of a row (each of its arrays has as many words), n those of the strip. */
typedef struct { const uint8_t *x[TILE]; int64_t words, nb, n; } q8_tile;

/* Words of chunk i of a row (ox_kernels.h): array 0 d, 1 ds, 2 n, 3 n0, 4 n1. */
#define WORD_F32(x, t, array, i) LOAD_F32((x)->x[t], (x)->words + 4 * ((array) * (x)->nb + (i)))
#define WORD_I32(x, t, array, i) LOAD_I32((x)->x[t], (x)->words + 4 * ((array) * (x)->nb + (i)))

/* What a sum of products begins with: the sum of activations in `array`, times 1 << shift; array 0: nothing. */
typedef struct { int array, shift; } start;

INLINE vi start_of(start a, const q8_tile *x, int t, int64_t i)
{
    return a.array ? vi_shl(WORD_I32(x, t, a.array, i), a.shift) : vi_zero();
}

/* s[t] = start + products of vectors `from` to `to` of chunk i, whose codes are below 1 << bits, for each token. */
INLINE void dot_tile(vi *s, const vb *w, int from, int to, int bits, start a, const q8_tile *x, int64_t i, const int T)
{
#ifdef HAVE_DOTS
    vi_dots(s, 1, w + from, vi_set1(0x10001), x->x, 32 * i + 4 * from, to - from, bits, T);
    UNROLL for (int t = 0; t < T; t++)
        s[t] = a.array ? vi_add(start_of(a, x, t, i), s[t]) : s[t];
#else
    (void)bits;
    UNROLL for (int t = 0; t < T; t++) {
        s[t] = start_of(a, x, t, i);
        UNROLL for (int v = from; v < to; v++)
            s[t] = vi_dot(s[t], w[v], vb_set4(x->x[t] + 32 * i + 4 * v));
    }
#endif
}

/* y += scale * d * (sum(code q) - (sum(q) << shift)) */
INLINE void add_offset(const vb *w, int bits, vf scale, int shift, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    vi s[TILE];
    dot_tile(s, w, 0, 8, bits, (start){2, shift}, x, i, T);
    UNROLL for (int t = 0; t < T; t++)
        acc[t] = vf_fma(vf_from_int(s[t]), vf_mul(scale, WORD_F32(x, t, 0, i)), acc[t]);
}

/* y += scale * d * sum(code q) for signed codes that need all eight bits, which come xor-ed with BYTE_SIGN: with 128
 * added, or, where vi_dot is exact for codes below 128 only, as they are, to be multiplied as signed bytes. */
#ifdef DOT_IS_7_BIT
#define BYTE_SIGN 0
INLINE void add_bytes(const vb *w, vf scale, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    vi s[TILE];
#ifdef HAVE_DOTS
    vi_dots_signed(s, w, x->x, 32 * i, 8, T);
#else
    UNROLL for (int t = 0; t < T; t++) {
        s[t] = vi_zero();
        UNROLL for (int v = 0; v < 8; v++)
            s[t] = vi_dot_signed(s[t], w[v], vb_set4(x->x[t] + 32 * i + 4 * v));
    }
#endif
    UNROLL for (int t = 0; t < T; t++)
        acc[t] = vf_fma(vf_from_int(s[t]), vf_mul(scale, WORD_F32(x, t, 0, i)), acc[t]);
}
#else
#define BYTE_SIGN 0x80
INLINE void add_bytes(const vb *w, vf scale, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    add_offset(w, 8, scale, 7, x, i, T, acc);
}
#endif

/* y += scale * d * sum(code q) - min * d * sum(q) */
INLINE void add_mins(const vb *w, int bits, vf scale, vf min, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    vi s[TILE];
    dot_tile(s, w, 0, 8, bits, (start){0, 0}, x, i, T);
    UNROLL for (int t = 0; t < T; t++) {
        acc[t] = vf_fma(vf_from_int(s[t]), vf_mul(scale, WORD_F32(x, t, 0, i)), acc[t]);
        acc[t] = vf_fnma(min, WORD_F32(x, t, 1, i), acc[t]);
    }
}

/* s[t] = sum over halves h of chunk i of scale_h * (start_h + products), for scales of 16 bits. `a` is the first half's
 * start; the second's is in the next array. */
INLINE void dot_halves(vi *s, const vb *w, int bits, const vi scale[2], start a, const q8_tile *x, int64_t i,
                       const int T)
{
#ifdef HAVE_DOTS
    UNROLL for (int h = 0; h < 2; h++)
        vi_dots(s, h == 0, w + 4 * h, vi_twice_16(scale[h]), x->x, 32 * i + 16 * h, 4, bits, T);
    if (a.array)
        UNROLL for (int h = 0; h < 2; h++) {
            vi times = vi_shl(scale[h], a.shift);
            UNROLL for (int t = 0; t < T; t++)
                s[t] = vi_add(s[t], vi_mul(WORD_I32(x, t, a.array + h, i), times));
        }
#else
    vi s1[TILE];
    dot_tile(s, w, 0, 4, bits, a, x, i, T);
    dot_tile(s1, w, 4, 8, bits, (start){a.array ? a.array + 1 : 0, a.shift}, x, i, T);
    UNROLL for (int t = 0; t < T; t++)
        s[t] = vi_add(vi_mul(s[t], scale[0]), vi_mul(s1[t], scale[1]));
#endif
}

/* y += scale * d * sum over halves h of scale_h * (sum_h(code q) - (sum_h(q) << shift)) */
INLINE void add_halves(const vb *w, int bits, vf scale, const vi half_scale[2], int shift, const q8_tile *x, int64_t i,
                       const int T, vf *acc)
{
    vi s[TILE];
    dot_halves(s, w, bits, half_scale, (start){3, shift}, x, i, T);
    UNROLL for (int t = 0; t < T; t++)
        acc[t] = vf_fma(vf_from_int(s[t]), vf_mul(scale, WORD_F32(x, t, 0, i)), acc[t]);
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
    for (int64_t i = 0; i < x->n; i++, b++) {
        vb w[8];
        unpack_nibbles(b->qs, half, w);
        add_offset(w, 4, vf_from_half(b->d + half * VL), 3, x, i, T, acc);
    }
}

INLINE void tile_Q4_1(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q4_1x16 *b = panel;
    for (int64_t i = 0; i < x->n; i++, b++) {
        vb w[8];
        unpack_nibbles(b->qs, half, w);
        vf min = vf_sub(vf_zero(), vf_from_half(b->m + half * VL));
        add_mins(w, 4, vf_from_half(b->d + half * VL), min, x, i, T, acc);
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
    for (int64_t i = 0; i < x->n; i++, b++) {
        vb w[8];
        unpack_fives(b->qs, b->qh, half, w);
        add_offset(w, 5, vf_from_half(b->d + half * VL), 4, x, i, T, acc);
    }
}

INLINE void tile_Q5_1(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q5_1x16 *b = panel;
    for (int64_t i = 0; i < x->n; i++, b++) {
        vb w[8];
        unpack_fives(b->qs, b->qh, half, w);
        vf min = vf_sub(vf_zero(), vf_from_half(b->m + half * VL));
        add_mins(w, 5, vf_from_half(b->d + half * VL), min, x, i, T, acc);
    }
}

INLINE void tile_Q8_0(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q8_0x16 *b = panel;
    for (int64_t i = 0; i < x->n; i++, b++) {
        vb w[8];
        UNROLL for (int v = 0; v < 8; v++)
            w[v] = vb_xor(vb_load(b->qs[v] + half * VB), vb_set1((char)(0x80 ^ BYTE_SIGN)));
        add_bytes(w, vf_from_half(b->d + half * VL), x, i, T, acc);
    }
}

INLINE void tile_Q4_K(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q4_kx16 *b = panel;
    for (int64_t i = 0; i < x->n; b++) {
        vf d = vf_from_half(b->d + half * VL), dmin = vf_from_half(b->dmin + half * VL);
        for (int c = 0; c < 8; c++, i++) {
            vb w[8];
            unpack_nibbles(b->qs[c], half, w);
            vf scale = vf_mul(d, vf_from_int(vi_from_u8(b->scales[c] + half * VL)));
            vf min = vf_mul(dmin, vf_from_int(vi_from_u8(b->mins[c] + half * VL)));
            add_mins(w, 4, scale, min, x, i, T, acc);
        }
    }
}

INLINE void tile_Q5_K(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q5_kx16 *b = panel;
    for (int64_t i = 0; i < x->n; b++) {
        vf d = vf_from_half(b->d + half * VL), dmin = vf_from_half(b->dmin + half * VL);
        for (int c = 0; c < 8; c++, i++) {
            vb w[8];
            unpack_fives(b->qs[c], b->qh[c], half, w);
            vf scale = vf_mul(d, vf_from_int(vi_from_u8(b->scales[c] + half * VL)));
            vf min = vf_mul(dmin, vf_from_int(vi_from_u8(b->mins[c] + half * VL)));
            add_mins(w, 5, scale, min, x, i, T, acc);
        }
    }
}

INLINE void tile_Q6_K(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q6_kx16 *b = panel;
    for (int64_t i = 0; i < x->n; b++) {
        vf d = vf_from_half(b->d + half * VL);
        for (int c = 0; c < 8; c++, i++) {
            vb w[8], top = vb_set1(0x30);
            vb high[2] = {vb_load(b->qh[c][0] + half * VB), vb_load(b->qh[c][1] + half * VB)};
            unpack_nibbles(b->qs[c], half, w);
            UNROLL for (int v = 0; v < 8; v++) { /* bits 2s, 2s+1 go to bits 4, 5 */
                int s = 2 * (v / 2);
                w[v] = vb_or(w[v], vb_and(s < 4 ? vb_shl(high[v % 2], 4 - s) : vb_shr(high[v % 2], s - 4), top));
            }
            vi scale[2] = {vi_from_i8(b->scales[2 * c] + half * VL), vi_from_i8(b->scales[2 * c + 1] + half * VL)};
            add_halves(w, 6, d, scale, 5, x, i, T, acc);
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

/* Adds the products of one strip. */
typedef void tile_fn(const void *strip, int half, const q8_tile *x, const int T, vf *acc);

/* Where a panel is two halves, both take their turn on strips of STRIP chunks, so that memory is read once, in order,
 * and the second finds its share in the first-level cache. A strip is one block, or several. */
#define STRIP 8
INLINE void panel_q8(const uint8_t *panel, size_t panel_bytes, q8_tile x, const int T, tile_fn *tile, vf acc[NV][TILE])
{
    const int64_t strip = NV > 1 && x.nb > STRIP ? STRIP : x.nb;
    const size_t strip_bytes = panel_bytes / (size_t)x.nb * (size_t)strip;
    for (int64_t i = 0; i < x.nb; i += strip, panel += strip_bytes, x.words -= 28 * strip) {
        x.n = x.nb - i < strip ? x.nb - i : strip;
        UNROLL for (int half = 0; half < NV; half++)
            tile(panel, half, &x, T, acc[half]);
        UNROLL for (int t = 0; t < T; t++)
            x.x[t] += 32 * strip;
    }
}

INLINE void panels_q8(const ox_gemm_args *a, int64_t t0, const int T, tile_fn *tile)
{
    q8_tile x = {{0}, a->k, a->k / 32, 0};
    UNROLL for (int t = 0; t < T; t++)
        x.x[t] = x_of(a, t0 + t);
    const uint8_t *panel = a->w;
    for (int64_t row = 0; row < a->n_rows; row += 16, panel += a->panel_bytes) {
        vf acc[NV][TILE];
        UNROLL for (int j = 0; j < NV * T; j++)
            acc[j / T][j % T] = vf_zero();
        panel_q8(panel, a->panel_bytes, x, T, tile, acc);
        UNROLL for (int j = 0; j < NV * T; j++) {
            int64_t r = row + j / T * VL;
            store_rows(y_of(a, t0 + j % T, r), acc[j / T][j % T], a->n_rows - r, a->accumulate);
        }
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
