/* The formats that keep the bits of their blocks, interleaved as words (ox_blocks.h): plain codes, and codes
 * that look up one of 16. Included after q8.h. */
#include "../ox_grids.h"

/* Word w of the rows of one half (or whole) of packed block b. */
#define WORD(b, w) vi_load((b)->words[w] + half * VL)
#define BYTES(b, w) vb_from_words(WORD(b, w))
#define HEAD(b, h) vf_from_half((b)->head[h] + half * VL)

INLINE void unpack_Q8_1(const void *block, int i, int half, chunk *c)
{
    const ox_q8_1x16 *b = block;
    (void)i;
    UNROLL for (int v = 0; v < 8; v++)
        c->w[v] = vb_xor(BYTES(b, v), vb_set1((char)BYTE_SIGN));
    c->scale = HEAD(b, 0);
}

INLINE void unpack_Q8_K(const void *block, int i, int half, chunk *c)
{
    const ox_q8_kx16 *b = block;
    UNROLL for (int v = 0; v < 8; v++)
        c->w[v] = vb_xor(BYTES(b, 1 + 8 * i + v), vb_set1((char)BYTE_SIGN));
    c->scale = vf_from_bits(WORD(b, 0));
}

/* Four bits to the lowest bits of four bytes. */
INLINE vi spread_bits(vi four) { return vi_and(vi_mul(four, vi_set1(0x00204081)), vi_set1(0x01010101)); }

INLINE void unpack_Q1_0(const void *block, int i, int half, chunk *c)
{
    const ox_q1_0x16 *b = block;
    UNROLL for (int v = 0; v < 8; v++) /* codes 0 and 2, less one */
        c->w[v] = vb_from_words(vi_shl(spread_bits(vi_and(vi_shr(WORD(b, i), 4 * v), vi_set1(15))), 1));
    c->scale = HEAD(b, 0);
}

INLINE void unpack_Q2_0(const void *block, int i, int half, chunk *c)
{
    const ox_q2_0x16 *b = block;
    UNROLL for (int v = 0; v < 8; v++) { /* two bits each of a byte go to four bytes */
        vi q = vi_and(vi_shr(WORD(b, 2 * i + v / 4), 8 * (v % 4)), vi_set1(255));
        q = vi_or(q, vi_shl(q, 12));
        c->w[v] = vb_from_words(vi_and(vi_or(q, vi_shl(q, 6)), vi_set1(0x03030303)));
    }
    c->scale = HEAD(b, 0);
}

INLINE void unpack_Q2_K(const void *block, int i, int half, chunk *c)
{
    const ox_q2_kx16 *b = block;
    UNROLL for (int v = 0; v < 8; v++)
        c->w[v] = vb_and(vb_shr(BYTES(b, 4 + i / 4 * 8 + v), 2 * (i % 4)), vb_set1(3));
    vi q = vi_shr(WORD(b, i / 2), i % 2 * 16), low = vi_set1(15);
    UNROLL for (int h = 0; h < 2; h++) {
        c->s[h] = vi_and(vi_shr(q, 8 * h), low);
        c->m[h] = vi_and(vi_shr(q, 8 * h + 4), low);
    }
    c->scale = HEAD(b, 0);
    c->second = HEAD(b, 1);
}

/* Six-bit scale j: four bits in a nibble of the first eight bytes of scales, two in the last four. */
INLINE vi scale_Q3_K(const ox_q3_kx16 *b, int half, int j)
{
    vi low = vi_and(vi_shr(WORD(b, 24 + j % 8 / 4), 8 * (j % 4) + 4 * (j / 8)), vi_set1(15));
    vi high = vi_and(vi_shr(WORD(b, 26), 8 * (j % 4) + 2 * (j / 4)), vi_set1(3));
    return vi_sub(vi_or(low, vi_shl(high, 4)), vi_set1(32));
}

INLINE void unpack_Q3_K(const void *block, int i, int half, chunk *c)
{
    const ox_q3_kx16 *b = block;
    UNROLL for (int v = 0; v < 8; v++) {
        vb low = vb_and(vb_shr(BYTES(b, 8 + i / 4 * 8 + v), 2 * (i % 4)), vb_set1(3));
        vb high = vb_and(vb_shr(BYTES(b, v), i), vb_set1(1));
        c->w[v] = vb_or(low, vb_shl(high, 2));
    }
    c->scale = HEAD(b, 0);
    UNROLL for (int h = 0; h < 2; h++)
        c->s[h] = scale_Q3_K(b, half, 2 * i + h);
}

INLINE void unpack_TQ2_0(const void *block, int i, int half, chunk *c)
{
    const ox_tq2_0x16 *b = block;
    UNROLL for (int v = 0; v < 8; v++)
        c->w[v] = vb_and(vb_shr(BYTES(b, i / 4 * 8 + v), 2 * (i % 4)), vb_set1(3));
    c->scale = HEAD(b, 0);
}

/* The digit of each byte that `power`, a power of three, brings to the front: (byte * power mod 256) * 3 / 256. */
INLINE vb trits(vb q, int power)
{
    vb odd = vb_mul16_high(vb_mul16_low(vb_and(q, vb_from_words(vi_set1((int)0xff00ff00))), power), 3);
    vb even = vb_mul16_high(vb_mul16_low(vb_shl(q, 8), power), 3);
    return vb_or(even, vb_shl(odd, 8));
}

/* Five chunks lie in words 0..7, five halves in words 8..11, four vectors in word 12. */
INLINE void unpack_TQ1_0(const void *block, int i, int half, chunk *c)
{
    const ox_tq1_0x16 *b = block;
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    UNROLL for (int v = 0; v < 8; v++) {
        int n = i < 5 ? i : 2 * (i - 5) + v / 4, in_last = i == 7 && v >= 4;
        c->w[v] = trits(BYTES(b, i < 5 ? v : in_last ? 12 : 8 + v % 4), power[in_last ? v - 4 : n]);
    }
    c->scale = HEAD(b, 0);
}

/* Codes of 16 nibble pairs through a table: vectors v from the low, v + 4 from the high halves of word v. */
INLINE void look_up_nibbles(const uint32_t words[4][16], int half, vb table, vb *w)
{
    unpack_nibbles((const uint8_t (*)[64])words, half, w);
    UNROLL for (int v = 0; v < 8; v++)
        w[v] = vb_lookup(table, w[v]);
}

INLINE void unpack_IQ4_NL(const void *block, int i, int half, chunk *c)
{
    const ox_iq4_nlx16 *b = block;
    (void)i;
    look_up_nibbles(b->words, half, vb_xor(vb_table(ox_codes_iq4), vb_set1((char)BYTE_SIGN)), c->w);
    c->scale = HEAD(b, 0);
}

/* Scale i of eight, of six bits: four of them in `low`, two in `high`. */
INLINE vf scale_IQ4_XS(vf d, vi low, vi high, int i)
{
    low = vi_and(vi_shr(low, 4 * i), vi_set1(15));
    high = vi_and(vi_shr(high, 2 * i), vi_set1(3));
    return vf_mul(d, vf_from_int(vi_sub(vi_or(low, vi_shl(high, 4)), vi_set1(32))));
}

INLINE void unpack_IQ4_XS(const void *block, int i, int half, chunk *c)
{
    const ox_iq4_xsx16 *b = block;
    look_up_nibbles(b->words + 1 + 4 * i, half, vb_xor(vb_table(ox_codes_iq4), vb_set1((char)BYTE_SIGN)), c->w);
    c->scale = scale_IQ4_XS(HEAD(b, 0), WORD(b, 0), vi_from_u16(b->head[1] + half * VL), i);
}

/* 2^(e - 128) as the product of two powers that are normal floats. */
INLINE vf power_of_two(vi e)
{
    vi e0 = vi_shr(e, 1), bias = vi_set1(63);
    vf first = vf_from_bits(vi_shl(vi_add(e0, bias), 23));
    vf second = vf_from_bits(vi_shl(vi_add(vi_sub(e, e0), bias), 23));
    return vf_mul(first, second);
}

INLINE void unpack_MXFP4(const void *block, int i, int half, chunk *c)
{
    const ox_mxfp4x16 *b = block;
    (void)i;
    look_up_nibbles(b->words, half, vb_add(vb_table(ox_codes_fp4), vb_set1(16)), c->w);
    c->scale = power_of_two(vi_from_u8(b->e + half * VL));
}

/* Half of the unsigned E4M3 in byte j of each word: the sign bit means nothing, and 0x7f is zero. */
INLINE vf e4m3_half(vi words, int j)
{
    vi e = vi_and(vi_shr(words, 8 * j), vi_set1(255));
    vi is_7f = vi_and(vi_and(vi_add(e, vi_set1(1)), vi_xor(e, vi_set1(128))), vi_set1(128));
    is_7f = vi_sub(is_7f, vi_shr(is_7f, 7));
    return vf_mul(vf_from_bits(vi_shl(vi_xor(vi_and(e, vi_set1(127)), is_7f), 20)), vf_set1(0x1p119f));
}

INLINE void unpack_NVFP4(const void *block, int i, int half, chunk *c)
{
    const ox_nvfp4x16 *b = block;
    vb table = vb_add(vb_table(ox_codes_fp4), vb_set1(16));
    UNROLL for (int v = 0; v < 8; v++) { /* 16 values in two words: low nibbles, then high ones */
        vb q = BYTES(b, 1 + 4 * i + v / 4 * 2 + v % 2);
        c->w[v] = vb_lookup(table, vb_and(v / 2 % 2 ? vb_shr(q, 4) : q, vb_set1(15)));
    }
    c->scale = e4m3_half(WORD(b, 0), 2 * i);
    c->second = e4m3_half(WORD(b, 0), 2 * i + 1);
}
