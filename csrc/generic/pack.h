/* Packing of the formats that most models have, as many rows at a time as a vector has lanes: the bytes are those of
 * scalar/pack.c, which takes the last panel of a matrix, where rows are missing. Weights that are packed on their
 * way into a product pass through here each time: the loop over single words took three times as long as the product
 * of one token, and that over single bits a hundred times. Included after a tier's vocab.h and its pack.h, which
 * puts words of rows side by side. */
#include "stored.h"

ox_pack_fn ox_pack_Q4_K, ox_pack_Q5_K, ox_pack_Q6_K, ox_pack_Q8_0, ox_pack_Q4_0, ox_pack_Q5_0, ox_pack_Q5_1;

/* One half of each row. */
INLINE void copy_halves(const uint8_t *src, size_t stride, ox_half *dst)
{
    for (int r = 0; r < VL; r += 8, src += 8 * stride, dst += 8) {
        __m128i x = eight_halves(src, stride);
        memcpy(dst, &x, sizeof x);
    }
}

/* Low or high nibbles of words v and v + 4 as the low and high halves of a byte. */
INLINE vi low_nibbles(const vi *w, int v)
{
    return vi_or(vi_and(w[v], vb_set1(15)), vi_and(vi_shl(w[v + 4], 4), vb_set1((char)0xf0)));
}
INLINE vi high_nibbles(const vi *w, int v)
{
    return vi_or(vi_and(vi_shr(w[v], 4), vb_set1(15)), vi_and(w[v + 4], vb_set1((char)0xf0)));
}

/* The first 16 bytes of a block of Q4_K or Q5_K. */
INLINE void put_scales(ox_half *d, ox_half *dmin, uint8_t (*scales)[16], uint8_t (*mins)[16], int half,
                              const vi head[4])
{
    vi scale[2], min[2];
    six_bit_scales(head, scale, min);
    put_halves(d + VL * half, head[0]);
    put_halves(dmin + VL * half, vi_shr(head[0], 16));
    for (int i = 0; i < 2; i++) {
        put_bytes(scales[4 * i] + VL * half, scale[i]);
        put_bytes(mins[4 * i] + VL * half, min[i]);
    }
}

static void pack_Q4_K(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL) {
        ox_pack_Q4_K(src, stride, n_rows, k, panel);
        return;
    }
    for (int64_t b = 0; b < k / 256; b++)
        for (int half = 0; half < NV; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)(half * VL) * stride + (size_t)b * sizeof(ox_q4_k);
            ox_q4_kx16 *dst = (ox_q4_kx16 *)panel + b;
            vi w[8];
            four_words(s, stride, w);
            put_scales(dst->d, dst->dmin, dst->scales, dst->mins, half, w);
            for (int c = 0; c < 8; c += 2) {
                eight_words(s + 16 + 16 * c, stride, w);
                UNROLL for (int v = 0; v < 4; v++) {
                    store(dst->qs[c][v] + VB * half, low_nibbles(w, v));
                    store(dst->qs[c + 1][v] + VB * half, high_nibbles(w, v));
                }
            }
        }
}

/* Bit `c` of the bytes of words v at bit v of the bytes of one word. */
INLINE vi one_bit_each(const vi *w, int c)
{
    vi found = vi_zero();
    UNROLL for (int v = 0; v < 8; v++)
        found = vi_or(found, vi_and(vi_moved(w[v], v - c), vb_set1((char)(1 << v))));
    return found;
}

static void pack_Q5_K(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL) {
        ox_pack_Q5_K(src, stride, n_rows, k, panel);
        return;
    }
    for (int64_t b = 0; b < k / 256; b++)
        for (int half = 0; half < NV; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)(half * VL) * stride + (size_t)b * sizeof(ox_q5_k);
            ox_q5_kx16 *dst = (ox_q5_kx16 *)panel + b;
            vi w[8];
            four_words(s, stride, w);
            put_scales(dst->d, dst->dmin, dst->scales, dst->mins, half, w);
            eight_words(s + 16, stride, w);
            UNROLL for (int c = 0; c < 8; c++)
                store(dst->chunks[c].qh + VB * half, one_bit_each(w, c));
            for (int c = 0; c < 8; c += 2) {
                eight_words(s + 48 + 16 * c, stride, w);
                UNROLL for (int v = 0; v < 4; v++) {
                    store(dst->chunks[c].qs[v] + VB * half, low_nibbles(w, v));
                    store(dst->chunks[c + 1].qs[v] + VB * half, high_nibbles(w, v));
                }
            }
        }
}

/* Bits i, i + 4, i + 8, ... of words together in their byte i. */
INLINE vi every_fourth_bit(vi words)
{
    vi found = vi_zero();
    UNROLL for (int i = 0; i < 4; i++) {
        vi x = vi_and(vi_shr(words, i), vb_set1(0x11));
        x = vi_and(vi_or(x, vi_shr(x, 3)), vb_set1(3));
        x = vi_and(vi_or(x, vi_shr(x, 6)), vi_set1(0x000f000f));
        x = vi_and(vi_or(x, vi_shr(x, 12)), vi_set1(0xff));
        found = vi_or(found, vi_shl(x, 8 * i));
    }
    return found;
}

/* Half a block of Q5_0 or Q5_1: its halves, then bits, then nibbles, which lie in the same order in both. */
INLINE void put_q5(const uint8_t *s, size_t stride, int n_halves, int half, uint8_t *dst)
{
    uint32_t bits[VL];
    vi w[4];
    for (int r = 0; r < VL; r++) {
        const uint8_t *row = s + (size_t)r * stride;
        for (int i = 0; i < n_halves; i++)
            memcpy(dst + 32 * i + 2 * VL * half + 2 * r, row + 2 * i, 2);
        memcpy(bits + r, row + 2 * n_halves, 4);
    }
    dst += 32 * n_halves;
    store(dst + VB * half, every_fourth_bit(vi_load(bits)));
    four_words(s + 2 * n_halves + 4, stride, w);
    UNROLL for (int v = 0; v < 4; v++)
        store(dst + 64 + 64 * v + VB * half, w[v]);
}

#define PACK_Q5(name, block, n_halves)                                                                  \
    static void pack_##name(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)      \
    {                                                                                                    \
        if (n_rows < OX_PANEL) {                                                                         \
            ox_pack_##name(src, stride, n_rows, k, panel);                                               \
            return;                                                                                      \
        }                                                                                                \
        for (int64_t b = 0; b < k / 32; b++)                                                             \
            for (int half = 0; half < NV; half++) {                                                       \
                const uint8_t *s = (const uint8_t *)src + (size_t)(half * VL) * stride + (size_t)b * sizeof(block); \
                put_q5(s, stride, n_halves, half, (uint8_t *)((block##x16 *)panel + b));                 \
            }                                                                                            \
    }
PACK_Q5(Q5_0, ox_q5_0, 1)
PACK_Q5(Q5_1, ox_q5_1, 2)

/* The top two bits of the codes of chunk `quarter` of a half block. */
INLINE vi top_bits(const vi *w, int p, int quarter)
{
    vi found = vi_zero();
    UNROLL for (int i = 0; i < 4; i++)
        found = vi_or(found, vi_and(vi_moved(w[2 * i + p], 2 * (i - quarter)), vb_set1((char)(3 << 2 * i))));
    return found;
}

static void pack_Q6_K(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL) {
        ox_pack_Q6_K(src, stride, n_rows, k, panel);
        return;
    }
    for (int64_t b = 0; b < k / 256; b++)
        for (int half = 0; half < NV; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)(half * VL) * stride + (size_t)b * sizeof(ox_q6_k);
            ox_q6_kx16 *dst = (ox_q6_kx16 *)panel + b;
            vi w[8];
            copy_halves(s + 208, stride, dst->d + VL * half);
            four_words(s + 192, stride, w);
            for (int i = 0; i < 4; i++)
                put_bytes((uint8_t *)dst->scales[4 * i] + VL * half, w[i]);
            for (int part = 0; part < 2; part++) {
                eight_words(s + 128 + 32 * part, stride, w);
                UNROLL for (int quarter = 0; quarter < 4; quarter++)
                    UNROLL for (int p = 0; p < 2; p++)
                        store(dst->chunks[4 * part + quarter].qh[p] + VB * half, top_bits(w, p, quarter));
                for (int odd = 0; odd < 2; odd++) {
                    eight_words(s + 64 * part + 32 * odd, stride, w);
                    UNROLL for (int v = 0; v < 4; v++) {
                        store(dst->chunks[4 * part + odd].qs[v] + VB * half, low_nibbles(w, v));
                        store(dst->chunks[4 * part + odd + 2].qs[v] + VB * half, high_nibbles(w, v));
                    }
                }
            }
        }
}

static void pack_Q8_0(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL) {
        ox_pack_Q8_0(src, stride, n_rows, k, panel);
        return;
    }
    for (int64_t b = 0; b < k / 32; b++)
        for (int half = 0; half < NV; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)(half * VL) * stride + (size_t)b * sizeof(ox_q8_0);
            ox_q8_0x16 *dst = (ox_q8_0x16 *)panel + b;
            vi w[8];
            copy_halves(s, stride, dst->d + VL * half);
            eight_words(s + 2, stride, w);
            UNROLL for (int v = 0; v < 8; v++)
                store(dst->qs[v] + VB * half, vi_xor(w[v], vb_set1((char)0x80)));
        }
}

static void pack_Q4_0(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL) {
        ox_pack_Q4_0(src, stride, n_rows, k, panel);
        return;
    }
    for (int64_t b = 0; b < k / 32; b++)
        for (int half = 0; half < NV; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)(half * VL) * stride + (size_t)b * sizeof(ox_q4_0);
            ox_q4_0x16 *dst = (ox_q4_0x16 *)panel + b;
            vi w[4];
            copy_halves(s, stride, dst->d + VL * half);
            four_words(s + 2, stride, w);
            UNROLL for (int v = 0; v < 4; v++)
                store(dst->qs[v] + VB * half, w[v]);
        }
}

static void fill_pack(ox_kernels *t)
{
    t->pack[OX_Q4_K] = pack_Q4_K;
    t->pack[OX_Q6_K] = pack_Q6_K;
    t->pack[OX_Q8_0] = pack_Q8_0;
    t->pack[OX_Q4_0] = pack_Q4_0;
    t->pack[OX_Q5_0] = pack_Q5_0;
    t->pack[OX_Q5_1] = pack_Q5_1;
    t->pack[OX_Q5_K] = pack_Q5_K;
}
