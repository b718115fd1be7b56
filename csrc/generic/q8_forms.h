/* How the codes of a chunk become shares of a product: one function for each meaning that formats give to their scales.
 * Included by q8.h. */
/* A tile: up to TILE activation rows against the 16 / NV rows of one half (or whole) of a panel. */
#ifndef TILE
#define TILE 8
#endif
#define GROUP 64
#ifndef TILE_PANELS
#define TILE_PANELS 1
#endif
#define STEP 8 /* chunks that are unpacked at a time for a group */

typedef struct {
    const uint8_t *x[TILE];
    int64_t k, nb;
#ifdef HAVE_PAIRS
    uint8_t *pairs; /* codes as q8_pairs.h has them */
    int paired;     /* whether those are multiplied, not x */
#endif
#ifdef HAVE_TILES
    const uint8_t *codes; /* of a step, `stride` apart */
    size_t stride;
    const float *d, *ds;  /* of a step, [TILE][STEP] */
#endif
} q8_tile;

/* 32 columns: codes, and what the form of a format (below) says of scales. */
typedef struct {
    vb w[8];
    vf scale, second;
    vi s[2], m[2];
#ifdef HAVE_TILES
    vb more[8]; /* codes of a second product (q8_tiles.h) */
#endif
} chunk;

#ifdef HAVE_PAIRS
#include "q8_pairs.h"
#endif

/* Sums over vectors from..to-1 of P panels for T tokens, DOT_TOKENS of them abreast: a sum waits for its last product,
 * which takes several cycles where one instruction multiplies and adds. The order in which integers are added is
 * free. */
INLINE void dot_chunk(const chunk *c, int from, int to, const q8_tile *x, int64_t i, const int P, const int T, vi *s)
{
#ifdef HAVE_PAIRS
    if (x->paired) {
        dot_pairs(c, from, to, x, i, T, s);
        return;
    }
#endif
#ifdef HAVE_QUADS
    (void)P; /* 1 */
    UNROLL for (int v = from; v < to; v += 4)
        UNROLL for (int t = 0; t < T; t++)
            s[t] = vi_dot_quad(s[t], c->w + v, x->x[t] + 32 * i + 4 * v);
#else
    UNROLL for (int t0 = 0; t0 < T; t0 += DOT_TOKENS) {
        const int t1 = t0 + DOT_TOKENS < T ? t0 + DOT_TOKENS : T;
        UNROLL for (int v = from; v < to; v++)
            UNROLL for (int t = t0; t < t1; t++) {
                vb codes = vb_set4(x->x[t] + 32 * i + 4 * v);
                UNROLL for (int p = 0; p < P; p++)
                    s[p * TILE + t] = vi_dot(s[p * TILE + t], c[p].w[v], codes);
            }
    }
#endif
}

/* Word i of array `n` of the five that stand behind the codes of token t. */
INLINE const uint8_t *word_of(const q8_tile *x, int t, int n, int64_t i)
{
    return x->x[t] + x->k + 4 * (n * x->nb + i);
}

/* y += s * scale * d */
INLINE void add_products(const vi *s, vf scale, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    UNROLL for (int t = 0; t < T; t++)
        acc[t] = vf_fma(vf_from_int(s[t]), vf_mul(scale, LOAD_F32(word_of(x, t, 0, i))), acc[t]);
}

#define NO_OFFSET 32
/* s = sum(code q) - (sum(q) << shift) over vectors from..to-1; array `n` holds minus their sums of q.
 * Codes are below 1 << bits. */
INLINE void dot_offset(const chunk *c, int from, int to, int n, int bits, int shift, const q8_tile *x, int64_t i,
                       const int P, const int T, vi *s)
{
#ifdef HAVE_DOTS
    (void)P; /* 1 */
    vi_dots(s, 1, c->w + from, vi_set1(0x10001), x->x, 32 * i + 4 * from, to - from, bits, T);
    UNROLL for (int t = 0; t < T; t++)
        s[t] = shift == NO_OFFSET ? s[t] : vi_add(s[t], vi_shl(LOAD_I32(word_of(x, t, n, i)), shift));
#else
    (void)bits;
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int p = 0; p < P; p++)
            s[p * TILE + t] = shift == NO_OFFSET ? vi_zero() : vi_shl(LOAD_I32(word_of(x, t, n, i)), shift);
    dot_chunk(c, from, to, x, i, P, T, s);
#endif
}

/* y += scale * d * (sum(code q) - (sum(q) << shift)), for P panels, whose sums lie TILE apart */
INLINE void add_offset(const chunk *c, int bits, int shift, const q8_tile *x, int64_t i, const int P, const int T,
                       vf *acc)
{
    vi s[TILE_PANELS * TILE];
    dot_offset(c, 0, 8, 2, bits, shift, x, i, P, T, s);
    UNROLL for (int p = 0; p < P; p++)
        add_products(s + p * TILE, c[p].scale, x, i, T, acc + p * TILE);
}

/* y += scale * d * sum(code q) for signed codes that need all eight bits, which come xor-ed with BYTE_SIGN: with 128
 * added, or, where vi_dot is exact for codes below 128 only, as they are, to be multiplied as signed bytes. */
#ifdef DOT_IS_7_BIT
#define BYTE_SIGN 0
INLINE void add_bytes(const chunk *c, const q8_tile *x, int64_t i, const int P, const int T, vf *acc)
{
    vi s[TILE];
    (void)P; /* 1 */
#ifdef HAVE_DOTS
    vi_dots_signed(s, c->w, x->x, 32 * i, 8, T);
#elif defined(HAVE_QUADS) /* of signed bytes */
    dot_offset(c, 0, 8, 2, 8, NO_OFFSET, x, i, 1, T, s);
#else
    UNROLL for (int t = 0; t < T; t++) {
        s[t] = vi_zero();
        UNROLL for (int v = 0; v < 8; v++)
            s[t] = vi_dot_signed(s[t], c->w[v], vb_set4(x->x[t] + 32 * i + 4 * v));
    }
#endif
    add_products(s, c->scale, x, i, T, acc);
}
#else
#define BYTE_SIGN 0x80
INLINE void add_bytes(const chunk *c, const q8_tile *x, int64_t i, const int P, const int T, vf *acc)
{
    add_offset(c, 8, 7, x, i, P, T, acc);
}
#endif

/* y += scale * d * sum(code q) - second * d * sum(q) */
INLINE void add_mins(const chunk *c, int bits, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    add_offset(c, bits, NO_OFFSET, x, i, 1, T, acc);
    UNROLL for (int t = 0; t < T; t++)
        acc[t] = vf_fnma(c->second, LOAD_F32(word_of(x, t, 1, i)), acc[t]);
}

/* s = sum over halves h of s_h * (sum_h(code q) - (sum_h(q) << shift)); s_h << shift are numbers of 16 bits. */
INLINE void dot_halves(const chunk *c, int bits, int shift, const q8_tile *x, int64_t i, const int T, vi *s)
{
#ifdef HAVE_DOTS
    UNROLL for (int h = 0; h < 2; h++) {
        vi_dots(s, h == 0, c->w + 4 * h, vi_twice_16(c->s[h]), x->x, 32 * i + 16 * h, 4, bits, T);
        UNROLL for (int t = 0; shift != NO_OFFSET && t < T; t++)
            s[t] = vi_add(s[t], vi_mul(LOAD_I32(word_of(x, t, 3 + h, i)), vi_shl(c->s[h], shift)));
    }
#else
    vi s1[TILE];
    dot_offset(c, 0, 4, 3, bits, shift, x, i, 1, T, s);
    UNROLL for (int t = 0; t < T; t++)
        s[t] = vi_mul(s[t], c->s[0]);
    dot_offset(c, 4, 8, 4, bits, shift, x, i, 1, T, s1);
    UNROLL for (int t = 0; t < T; t++)
        s[t] = vi_add(s[t], vi_mul(s1[t], c->s[1]));
#endif
}

/* y += scale * d * sum over halves h of s_h * (sum_h(code q) - (sum_h(q) << shift)) */
INLINE void add_halves(const chunk *c, int bits, int shift, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    vi s[TILE];
    dot_halves(c, bits, shift, x, i, T, s);
    add_products(s, c->scale, x, i, T, acc);
}

/* y += d * sum over halves h of (s_h * scale * sum_h(code q) - m_h * second * sum_h(q)) */
INLINE void add_halves_mins(const chunk *c, int bits, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    add_halves(c, bits, NO_OFFSET, x, i, T, acc);
    UNROLL for (int t = 0; t < T; t++) {
        vi n0 = LOAD_I32(word_of(x, t, 3, i)), n1 = LOAD_I32(word_of(x, t, 4, i));
        vf n = vf_from_int(vi_add(vi_mul(n0, c->m[0]), vi_mul(n1, c->m[1])));
        acc[t] = vf_fma(n, vf_mul(c->second, LOAD_F32(word_of(x, t, 0, i))), acc[t]);
    }
}

/* The same as add_halves for scales that are no integers: scale and second */
INLINE void add_float_halves(const chunk *c, int bits, int shift, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    vi s[TILE];
    dot_offset(c, 0, 4, 3, bits, shift, x, i, 1, T, s);
    add_products(s, c->scale, x, i, T, acc);
    dot_offset(c, 4, 8, 4, bits, shift, x, i, 1, T, s);
    add_products(s, c->second, x, i, T, acc);
}

/* How the codes of a format become weights: one of the functions above, the bits of a code, and the shift. */
enum { ADD_OFFSET, ADD_BYTES, ADD_MINS, ADD_HALVES, ADD_HALVES_MINS, ADD_FLOAT_HALVES };
typedef struct { int add, bits, shift; } q8_form;
#define OFFSET(bits, shift) ((q8_form){ADD_OFFSET, bits, shift})
#define SIGNED_BYTES ((q8_form){ADD_BYTES, 8, 0})
#define MINS(bits) ((q8_form){ADD_MINS, bits, 0})
#define HALVES(bits, shift) ((q8_form){ADD_HALVES, bits, shift})
#define HALVES_MINS(bits) ((q8_form){ADD_HALVES_MINS, bits, 0})
#define FLOAT_HALVES(bits, shift) ((q8_form){ADD_FLOAT_HALVES, bits, shift})

INLINE void add_chunk(const q8_form f, const chunk *c, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    switch (f.add) {
    case ADD_OFFSET: add_offset(c, f.bits, f.shift, x, i, 1, T, acc); break;
    case ADD_BYTES: add_bytes(c, x, i, 1, T, acc); break;
    case ADD_MINS: add_mins(c, f.bits, x, i, T, acc); break;
    case ADD_HALVES: add_halves(c, f.bits, f.shift, x, i, T, acc); break;
    case ADD_HALVES_MINS: add_halves_mins(c, f.bits, x, i, T, acc); break;
    case ADD_FLOAT_HALVES: add_float_halves(c, f.bits, f.shift, x, i, T, acc); break;
    }
}

/* The same of TILE_PANELS panels for a whole tile, for the forms that have it. */
INLINE void add_chunks(const q8_form f, const chunk *c, const q8_tile *x, int64_t i, vf *acc)
{
    if (f.add == ADD_OFFSET)
        add_offset(c, f.bits, f.shift, x, i, TILE_PANELS, TILE, acc);
    else
        add_bytes(c, x, i, TILE_PANELS, TILE, acc);
}

/* The form of a group's codes: where they are paired, offsets were taken off them. */
#if defined(HAVE_PAIRS) || defined(HAVE_TILES)
INLINE int has_offset(const q8_form f)
{
    return f.add == ADD_OFFSET || f.add == ADD_HALVES || f.add == ADD_FLOAT_HALVES;
}
INLINE int offset_of(const q8_form f) { return has_offset(f) ? 1 << f.shift : 0; }
#endif
#ifdef HAVE_PAIRS
#define GROUP_FORM(f) ((q8_form){f.add, f.bits, has_offset(f) ? NO_OFFSET : f.shift})
#else
#define GROUP_FORM(f) f
#endif
