/* Tiles of the formats that keep the bits of their blocks, interleaved as words (ox_blocks.h): plain codes, and codes
 * that look up one of 16. Included after q8.h. */
#include "../ox_grids.h"

/* Word w of the rows of one half (or whole) of packed block b. */
#define WORD(b, w) vi_load((b)->words[w] + half * VL)
#define BYTES(b, w) vb_from_words(WORD(b, w))
#define HEAD(b, h) vf_from_half((b)->head[h] + half * VL)

/* y += d * sum over halves h of (scale_h * scale * sum_h(code q) - min_h * min * sum_h(q)) */
INLINE void add_halves_mins(const vb *w, int bits, vf scale, const vi s[2], vf min, const vi m[2], const q8_tile *x,
                            int64_t i, const int T, vf *acc)
{
    vi sum[TILE];
    dot_halves(sum, w, bits, s, (start){0, 0}, x, i, T);
    UNROLL for (int t = 0; t < T; t++) {
        vf d = WORD_F32(x, t, 0, i);
        vi n0 = WORD_I32(x, t, 3, i), n1 = WORD_I32(x, t, 4, i);
        acc[t] = vf_fma(vf_from_int(sum[t]), vf_mul(scale, d), acc[t]);
        acc[t] = vf_fma(vf_from_int(vi_add(vi_mul(n0, m[0]), vi_mul(n1, m[1]))), vf_mul(min, d), acc[t]);
    }
}

/* y += d * sum over halves h of scale_h * (sum_h(code q) - (sum_h(q) << shift)), for scales that are no integers */
INLINE void add_float_halves(const vb *w, int bits, vf scale0, vf scale1, int shift, const q8_tile *x, int64_t i,
                             const int T, vf *acc)
{
    vi s0[TILE], s1[TILE];
    dot_tile(s0, w, 0, 4, bits, (start){3, shift}, x, i, T);
    dot_tile(s1, w, 4, 8, bits, (start){4, shift}, x, i, T);
    UNROLL for (int t = 0; t < T; t++) {
        vf d = WORD_F32(x, t, 0, i);
        acc[t] = vf_fma(vf_from_int(s0[t]), vf_mul(scale0, d), acc[t]);
        acc[t] = vf_fma(vf_from_int(s1[t]), vf_mul(scale1, d), acc[t]);
    }
}

INLINE void tile_Q8_1(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q8_1x16 *b = panel;
    for (int64_t i = 0; i < x->n; i++, b++) {
        vb w[8];
        UNROLL for (int v = 0; v < 8; v++)
            w[v] = vb_xor(BYTES(b, v), vb_set1((char)BYTE_SIGN));
        add_bytes(w, HEAD(b, 0), x, i, T, acc);
    }
}

INLINE void tile_Q8_K(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q8_kx16 *b = panel;
    for (int64_t i = 0; i < x->n; b++)
        for (int c = 0; c < 8; c++, i++) {
            vb w[8];
            UNROLL for (int v = 0; v < 8; v++)
                w[v] = vb_xor(BYTES(b, 1 + 8 * c + v), vb_set1((char)BYTE_SIGN));
            add_bytes(w, vf_from_bits(WORD(b, 0)), x, i, T, acc);
        }
}

/* Four bits to the lowest bits of four bytes. */
INLINE vi spread_bits(vi four) { return vi_and(vi_mul(four, vi_set1(0x00204081)), vi_set1(0x01010101)); }

INLINE void tile_Q1_0(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q1_0x16 *b = panel;
    for (int64_t i = 0; i < x->n; b++)
        for (int c = 0; c < 4; c++, i++) {
            vb w[8];
            UNROLL for (int v = 0; v < 8; v++) /* codes 0 and 2, less one */
                w[v] = vb_from_words(vi_shl(spread_bits(vi_and(vi_shr(WORD(b, c), 4 * v), vi_set1(15))), 1));
            add_offset(w, 2, HEAD(b, 0), 0, x, i, T, acc);
        }
}

INLINE void tile_Q2_0(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q2_0x16 *b = panel;
    for (int64_t i = 0; i < x->n; b++)
        for (int c = 0; c < 2; c++, i++) {
            vb w[8];
            UNROLL for (int v = 0; v < 8; v++) { /* two bits each of a byte go to four bytes */
                vi q = vi_and(vi_shr(WORD(b, 2 * c + v / 4), 8 * (v % 4)), vi_set1(255));
                q = vi_or(q, vi_shl(q, 12));
                w[v] = vb_from_words(vi_and(vi_or(q, vi_shl(q, 6)), vi_set1(0x03030303)));
            }
            add_offset(w, 2, HEAD(b, 0), 0, x, i, T, acc);
        }
}

INLINE void tile_Q2_K(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q2_kx16 *b = panel;
    for (int64_t i = 0; i < x->n; b++)
        for (int c = 0; c < 8; c++, i++) {
            vb w[8];
            UNROLL for (int v = 0; v < 8; v++)
                w[v] = vb_and(vb_shr(BYTES(b, 4 + c / 4 * 8 + v), 2 * (c % 4)), vb_set1(3));
            vi q = vi_shr(WORD(b, c / 2), c % 2 * 16), low = vi_set1(15);
            vi s[2] = {vi_and(q, low), vi_and(vi_shr(q, 8), low)};
            vi m[2] = {vi_and(vi_shr(q, 4), low), vi_and(vi_shr(q, 12), low)};
            add_halves_mins(w, 2, HEAD(b, 0), s, HEAD(b, 1), m, x, i, T, acc);
        }
}

/* Six-bit scale j: four bits in a nibble of the first eight bytes of scales, two in the last four. */
INLINE vi scale_Q3_K(const ox_q3_kx16 *b, int half, int j)
{
    vi low = vi_and(vi_shr(WORD(b, 24 + j % 8 / 4), 8 * (j % 4) + 4 * (j / 8)), vi_set1(15));
    vi high = vi_and(vi_shr(WORD(b, 26), 8 * (j % 4) + 2 * (j / 4)), vi_set1(3));
    return vi_sub(vi_or(low, vi_shl(high, 4)), vi_set1(32));
}

INLINE void tile_Q3_K(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_q3_kx16 *b = panel;
    for (int64_t i = 0; i < x->n; b++)
        for (int c = 0; c < 8; c++, i++) {
            vb w[8];
            UNROLL for (int v = 0; v < 8; v++) {
                vb low = vb_and(vb_shr(BYTES(b, 8 + c / 4 * 8 + v), 2 * (c % 4)), vb_set1(3));
                vb high = vb_and(vb_shr(BYTES(b, v), c), vb_set1(1));
                w[v] = vb_or(low, vb_shl(high, 2));
            }
            vi scale[2] = {scale_Q3_K(b, half, 2 * c), scale_Q3_K(b, half, 2 * c + 1)};
            add_halves(w, 3, HEAD(b, 0), scale, 2, x, i, T, acc);
        }
}

INLINE void tile_TQ2_0(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_tq2_0x16 *b = panel;
    for (int64_t i = 0; i < x->n; b++)
        for (int c = 0; c < 8; c++, i++) {
            vb w[8];
            UNROLL for (int v = 0; v < 8; v++)
                w[v] = vb_and(vb_shr(BYTES(b, c / 4 * 8 + v), 2 * (c % 4)), vb_set1(3));
            add_offset(w, 2, HEAD(b, 0), 0, x, i, T, acc);
        }
}

/* The digit of each byte that `power`, a power of three, brings to the front: (byte * power mod 256) * 3 / 256. */
INLINE vb trits(vb q, int power)
{
    vb odd = vb_mul16_high(vb_mul16_low(vb_and(q, vb_from_words(vi_set1((int)0xff00ff00))), power), 3);
    vb even = vb_mul16_high(vb_mul16_low(vb_shl(q, 8), power), 3);
    return vb_or(even, vb_shl(odd, 8));
}

INLINE void tile_TQ1_0(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const ox_tq1_0x16 *b = panel;
    for (int64_t i = 0; i < x->n; b++)
        for (int c = 0; c < 8; c++, i++) { /* 5 chunks in words 0..7, 5 halves in words 8..11, 4 vectors in word 12 */
            vb w[8];
            UNROLL for (int v = 0; v < 8; v++) {
                int n = c < 5 ? c : 2 * (c - 5) + v / 4, in_last = c == 7 && v >= 4;
                w[v] = trits(BYTES(b, c < 5 ? v : in_last ? 12 : 8 + v % 4), power[in_last ? v - 4 : n]);
            }
            add_offset(w, 2, HEAD(b, 0), 0, x, i, T, acc);
        }
}

/* Codes of 16 nibble pairs through a table: vectors v from the low, v + 4 from the high halves of word v. */
INLINE void look_up_nibbles(const uint32_t words[4][16], int half, vb table, vb *w)
{
    unpack_nibbles((const uint8_t (*)[64])words, half, w);
    UNROLL for (int v = 0; v < 8; v++)
        w[v] = vb_lookup(table, w[v]);
}

INLINE void tile_IQ4_NL(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_iq4_nlx16 *b = panel;
    vb table = vb_xor(vb_table(ox_codes_iq4), vb_set1((char)BYTE_SIGN));
    for (int64_t i = 0; i < x->n; i++, b++) {
        vb w[8];
        look_up_nibbles(b->words, half, table, w);
        add_bytes(w, HEAD(b, 0), x, i, T, acc);
    }
}

INLINE void tile_IQ4_XS(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_iq4_xsx16 *b = panel;
    vb table = vb_xor(vb_table(ox_codes_iq4), vb_set1((char)BYTE_SIGN));
    for (int64_t i = 0; i < x->n; b++)
        for (int c = 0; c < 8; c++, i++) {
            vb w[8];
            look_up_nibbles(b->words + 1 + 4 * c, half, table, w);
            vi low = vi_and(vi_shr(WORD(b, 0), 4 * c), vi_set1(15));
            vi high = vi_and(vi_shr(vi_from_u16(b->head[1] + half * VL), 2 * c), vi_set1(3));
            vi scale = vi_sub(vi_or(low, vi_shl(high, 4)), vi_set1(32));
            add_bytes(w, vf_mul(HEAD(b, 0), vf_from_int(scale)), x, i, T, acc);
        }
}

INLINE void tile_MXFP4(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_mxfp4x16 *b = panel;
    vb table = vb_add(vb_table(ox_codes_fp4), vb_set1(16));
    for (int64_t i = 0; i < x->n; i++, b++) {
        vb w[8];
        look_up_nibbles(b->words, half, table, w);
        /* 2^(e - 128) as the product of two powers that are normal floats */
        vi e = vi_from_u8(b->e + half * VL), e0 = vi_shr(e, 1), bias = vi_set1(63);
        vf first = vf_from_bits(vi_shl(vi_add(e0, bias), 23));
        vf second = vf_from_bits(vi_shl(vi_add(vi_sub(e, e0), bias), 23));
        add_offset(w, 5, vf_mul(first, second), 4, x, i, T, acc);
    }
}

/* Half of the unsigned E4M3 in byte j of each word: the sign bit means nothing, and 0x7f is zero. */
INLINE vf e4m3_half(vi words, int j)
{
    vi e = vi_and(vi_shr(words, 8 * j), vi_set1(255));
    vi is_7f = vi_and(vi_and(vi_add(e, vi_set1(1)), vi_xor(e, vi_set1(128))), vi_set1(128));
    is_7f = vi_sub(is_7f, vi_shr(is_7f, 7));
    return vf_mul(vf_from_bits(vi_shl(vi_xor(vi_and(e, vi_set1(127)), is_7f), 20)), vf_set1(0x1p119f));
}

INLINE void tile_NVFP4(const void *panel, int half, const q8_tile *x, const int T, vf *acc)
{
    const ox_nvfp4x16 *b = panel;
    vb table = vb_add(vb_table(ox_codes_fp4), vb_set1(16));
    for (int64_t i = 0; i < x->n; b++)
        for (int c = 0; c < 2; c++, i++) {
            vb w[8];
            UNROLL for (int v = 0; v < 8; v++) { /* 16 values in two words: low nibbles, then high ones */
                vb q = BYTES(b, 1 + 4 * c + v / 4 * 2 + v % 2);
                w[v] = vb_lookup(table, vb_and(v / 2 % 2 ? vb_shr(q, 4) : q, vb_set1(15)));
            }
            add_float_halves(w, 5, e4m3_half(WORD(b, 0), 2 * c), e4m3_half(WORD(b, 0), 2 * c + 1), 4, x, i, T, acc);
        }
}
