/* Packing of the formats that most models have, eight rows at a time: the bytes are those of scalar/pack.c, which takes
 * the last panel of a matrix, where rows are missing. Weights that are packed on their way into a product pass through
 * here each time: the loop over single words took three times as long as the product of one token, and that over single
 * bits a hundred times. AVX-512 takes these. */
#include "pack.h"

ox_pack_fn ox_pack_Q4_K, ox_pack_Q5_K, ox_pack_Q6_K, ox_pack_Q8_0, ox_pack_Q4_0, ox_pack_Q5_0, ox_pack_Q5_1;

/* The first 16 bytes of a block of Q4_K or Q5_K. */
static inline void put_scales(ox_half *d, ox_half *dmin, uint8_t (*scales)[16], uint8_t (*mins)[16], int half,
                              const __m256i head[4])
{
    __m256i six = every_byte(63), low = every_byte(15), top = every_byte(0x30);
    __m256i scale = _mm256_and_si256(head[1], six), min = _mm256_and_si256(head[2], six);
    put_halves(d + 8 * half, head[0]);
    put_halves(dmin + 8 * half, _mm256_srli_epi32(head[0], 16));
    put_bytes(scales[0] + 8 * half, scale);
    put_bytes(mins[0] + 8 * half, min);
    scale = _mm256_or_si256(_mm256_and_si256(head[3], low), _mm256_and_si256(_mm256_srli_epi32(head[1], 2), top));
    min = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(head[3], 4), low),
                          _mm256_and_si256(_mm256_srli_epi32(head[2], 2), top));
    put_bytes(scales[4] + 8 * half, scale);
    put_bytes(mins[4] + 8 * half, min);
}

static void pack_Q4_K(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL) {
        ox_pack_Q4_K(src, stride, n_rows, k, panel);
        return;
    }
    for (int64_t b = 0; b < k / 256; b++)
        for (int half = 0; half < 2; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)half * 8 * stride + (size_t)b * sizeof(ox_q4_k);
            ox_q4_kx16 *dst = (ox_q4_kx16 *)panel + b;
            __m256i w[8];
            four_words(s, stride, w);
            put_scales(dst->d, dst->dmin, dst->scales, dst->mins, half, w);
            for (int c = 0; c < 8; c += 2) {
                eight_words(s + 16 + 16 * c, stride, w);
                for (int v = 0; v < 4; v++) {
                    store(dst->qs[c][v] + 32 * half, low_nibbles(w, v));
                    store(dst->qs[c + 1][v] + 32 * half, high_nibbles(w, v));
                }
            }
        }
}

/* Bit `c` of the bytes of words v at bit v of the bytes of one word. */
static inline __m256i one_bit_each(const __m256i *w, int c)
{
    __m256i found = _mm256_setzero_si256();
    for (int v = 0; v < 8; v++) {
        __m256i bit = _mm256_and_si256(_mm256_srli_epi32(w[v], c), every_byte(1));
        found = _mm256_or_si256(found, _mm256_slli_epi32(bit, v));
    }
    return found;
}

static void pack_Q5_K(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL) {
        ox_pack_Q5_K(src, stride, n_rows, k, panel);
        return;
    }
    for (int64_t b = 0; b < k / 256; b++)
        for (int half = 0; half < 2; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)half * 8 * stride + (size_t)b * sizeof(ox_q5_k);
            ox_q5_kx16 *dst = (ox_q5_kx16 *)panel + b;
            __m256i w[8];
            four_words(s, stride, w);
            put_scales(dst->d, dst->dmin, dst->scales, dst->mins, half, w);
            eight_words(s + 16, stride, w);
            for (int c = 0; c < 8; c++)
                store(dst->chunks[c].qh + 32 * half, one_bit_each(w, c));
            for (int c = 0; c < 8; c += 2) {
                eight_words(s + 48 + 16 * c, stride, w);
                for (int v = 0; v < 4; v++) {
                    store(dst->chunks[c].qs[v] + 32 * half, low_nibbles(w, v));
                    store(dst->chunks[c + 1].qs[v] + 32 * half, high_nibbles(w, v));
                }
            }
        }
}

/* Bits i, i + 4, i + 8, ... of words together in their byte i. */
static inline __m256i every_fourth_bit(__m256i words)
{
    __m256i found = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        __m256i x = _mm256_and_si256(_mm256_srli_epi32(words, i), every_byte(0x11));
        x = _mm256_and_si256(_mm256_or_si256(x, _mm256_srli_epi32(x, 3)), every_byte(3));
        x = _mm256_and_si256(_mm256_or_si256(x, _mm256_srli_epi32(x, 6)), _mm256_set1_epi32(0x000f000f));
        x = _mm256_and_si256(_mm256_or_si256(x, _mm256_srli_epi32(x, 12)), _mm256_set1_epi32(0xff));
        found = _mm256_or_si256(found, _mm256_slli_epi32(x, 8 * i));
    }
    return found;
}

/* Half a block of Q5_0 or Q5_1: its halves, then bits, then nibbles, which lie in the same order in both. */
static inline void put_q5(const uint8_t *s, size_t stride, int n_halves, int half, uint8_t *dst)
{
    uint32_t bits[8];
    __m256i w[4];
    for (int r = 0; r < 8; r++) {
        const uint8_t *row = s + (size_t)r * stride;
        for (int i = 0; i < n_halves; i++)
            memcpy(dst + 32 * i + 16 * half + 2 * r, row + 2 * i, 2);
        memcpy(bits + r, row + 2 * n_halves, 4);
    }
    dst += 32 * n_halves;
    store(dst + 32 * half, every_fourth_bit(_mm256_loadu_si256((const __m256i *)bits)));
    four_words(s + 2 * n_halves + 4, stride, w);
    for (int v = 0; v < 4; v++)
        store(dst + 64 + 64 * v + 32 * half, w[v]);
}

#define PACK_Q5(name, block, n_halves)                                                                  \
    static void pack_##name(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)      \
    {                                                                                                    \
        if (n_rows < OX_PANEL) {                                                                         \
            ox_pack_##name(src, stride, n_rows, k, panel);                                               \
            return;                                                                                      \
        }                                                                                                \
        for (int64_t b = 0; b < k / 32; b++)                                                             \
            for (int half = 0; half < 2; half++) {                                                       \
                const uint8_t *s = (const uint8_t *)src + (size_t)half * 8 * stride + (size_t)b * sizeof(block); \
                put_q5(s, stride, n_halves, half, (uint8_t *)((block##x16 *)panel + b));                 \
            }                                                                                            \
    }
PACK_Q5(Q5_0, ox_q5_0, 1)
PACK_Q5(Q5_1, ox_q5_1, 2)

/* The top two bits of the codes of chunk `quarter` of a half block. */
static inline __m256i top_bits(const __m256i *w, int p, int quarter)
{
    __m256i bits = every_byte(3), found = _mm256_and_si256(_mm256_srli_epi32(w[p], 2 * quarter), bits);
    for (int i = 1; i < 4; i++) {
        __m256i x = _mm256_and_si256(_mm256_srli_epi32(w[2 * i + p], 2 * quarter), bits);
        found = _mm256_or_si256(found, _mm256_slli_epi32(x, 2 * i));
    }
    return found;
}

static void pack_Q6_K(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL) {
        ox_pack_Q6_K(src, stride, n_rows, k, panel);
        return;
    }
    for (int64_t b = 0; b < k / 256; b++)
        for (int half = 0; half < 2; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)half * 8 * stride + (size_t)b * sizeof(ox_q6_k);
            ox_q6_kx16 *dst = (ox_q6_kx16 *)panel + b;
            __m256i w[8];
            for (int r = 0; r < 8; r++)
                memcpy(dst->d + 8 * half + r, s + (size_t)r * stride + 208, 2);
            four_words(s + 192, stride, w);
            for (int i = 0; i < 4; i++)
                put_bytes((uint8_t *)dst->scales[4 * i] + 8 * half, w[i]);
            for (int part = 0; part < 2; part++) {
                eight_words(s + 128 + 32 * part, stride, w);
                for (int quarter = 0; quarter < 4; quarter++)
                    for (int p = 0; p < 2; p++)
                        store(dst->chunks[4 * part + quarter].qh[p] + 32 * half, top_bits(w, p, quarter));
                for (int odd = 0; odd < 2; odd++) {
                    eight_words(s + 64 * part + 32 * odd, stride, w);
                    for (int v = 0; v < 4; v++) {
                        store(dst->chunks[4 * part + odd].qs[v] + 32 * half, low_nibbles(w, v));
                        store(dst->chunks[4 * part + odd + 2].qs[v] + 32 * half, high_nibbles(w, v));
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
        for (int half = 0; half < 2; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)half * 8 * stride + (size_t)b * sizeof(ox_q8_0);
            ox_q8_0x16 *dst = (ox_q8_0x16 *)panel + b;
            __m256i w[8];
            for (int r = 0; r < 8; r++)
                memcpy(dst->d + 8 * half + r, s + (size_t)r * stride, 2);
            eight_words(s + 2, stride, w);
            for (int v = 0; v < 8; v++)
                store(dst->qs[v] + 32 * half, _mm256_xor_si256(w[v], every_byte(0x80)));
        }
}

static void pack_Q4_0(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL) {
        ox_pack_Q4_0(src, stride, n_rows, k, panel);
        return;
    }
    for (int64_t b = 0; b < k / 32; b++)
        for (int half = 0; half < 2; half++) {
            const uint8_t *s = (const uint8_t *)src + (size_t)half * 8 * stride + (size_t)b * sizeof(ox_q4_0);
            ox_q4_0x16 *dst = (ox_q4_0x16 *)panel + b;
            __m256i w[4];
            for (int r = 0; r < 8; r++)
                memcpy(dst->d + 8 * half + r, s + (size_t)r * stride, 2);
            four_words(s + 2, stride, w);
            for (int v = 0; v < 4; v++)
                store(dst->qs[v] + 32 * half, w[v]);
        }
}

void ox_avx2_pack(ox_kernels *t)
{
    t->pack[OX_Q4_K] = pack_Q4_K;
    t->pack[OX_Q6_K] = pack_Q6_K;
    t->pack[OX_Q8_0] = pack_Q8_0;
    t->pack[OX_Q4_0] = pack_Q4_0;
    t->pack[OX_Q5_0] = pack_Q5_0;
    t->pack[OX_Q5_1] = pack_Q5_1;
    t->pack[OX_Q5_K] = pack_Q5_K;
    ox_avx2_pack_words(t);
}
