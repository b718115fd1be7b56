/* Packing of the formats that most models have, eight rows at a time: the bytes are those of scalar/pack.c, which takes
 * the last panel of a matrix, where rows are missing. Weights that are packed on their way into a product pass through
 * here each time: the loop over single words took three times as long as the product of one token. AVX-512 takes these. */
#include <immintrin.h>
#include <string.h>
#include "../ox_dispatch.h"
#include "../ox_blocks.h"

ox_pack_fn ox_pack_Q4_K, ox_pack_Q6_K, ox_pack_Q8_0, ox_pack_Q4_0;

static inline __m256i both(const uint8_t *low, const uint8_t *high)
{
    __m128i a = _mm_loadu_si128((const __m128i *)low);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), _mm_loadu_si128((const __m128i *)high), 1);
}

/* Four words of each of eight rows: word v of all rows in w[v]. */
static inline void four_words(const uint8_t *src, size_t stride, __m256i w[4])
{
    __m256i a = both(src, src + 4 * stride), b = both(src + stride, src + 5 * stride);
    __m256i c = both(src + 2 * stride, src + 6 * stride), d = both(src + 3 * stride, src + 7 * stride);
    __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    __m256i AB = _mm256_unpackhi_epi32(a, b), CD = _mm256_unpackhi_epi32(c, d);
    w[0] = _mm256_unpacklo_epi64(ab, cd);
    w[1] = _mm256_unpackhi_epi64(ab, cd);
    w[2] = _mm256_unpacklo_epi64(AB, CD);
    w[3] = _mm256_unpackhi_epi64(AB, CD);
}

static inline void eight_words(const uint8_t *src, size_t stride, __m256i w[8])
{
    four_words(src, stride, w);
    four_words(src + 16, stride, w + 4);
}

static inline __m256i every_byte(int value) { return _mm256_set1_epi8((char)value); }
static inline void store(void *dst, __m256i x) { _mm256_storeu_si256((__m256i *)dst, x); }

/* Low or high nibbles of words v and v + 4 as the low and high halves of a byte. */
static inline __m256i low_nibbles(const __m256i *w, int v)
{
    __m256i low = every_byte(15);
    return _mm256_or_si256(_mm256_and_si256(w[v], low), _mm256_slli_epi32(_mm256_and_si256(w[v + 4], low), 4));
}
static inline __m256i high_nibbles(const __m256i *w, int v)
{
    __m256i low = every_byte(15);
    return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(w[v], 4), low), _mm256_andnot_si256(low, w[v + 4]));
}

/* Bytes of words: byte i of the words of eight rows to the eight bytes at dst + 16 * i. */
static inline void put_bytes(uint8_t *dst, __m256i words)
{
    const __m256i by_byte = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                                             0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i x = _mm256_shuffle_epi8(words, by_byte);
    __m128i a = _mm256_castsi256_si128(x), b = _mm256_extracti128_si256(x, 1);
    __m128i ab = _mm_unpacklo_epi32(a, b), AB = _mm_unpackhi_epi32(a, b);
    _mm_storel_epi64((__m128i *)dst, ab);
    _mm_storel_epi64((__m128i *)(dst + 16), _mm_unpackhi_epi64(ab, ab));
    _mm_storel_epi64((__m128i *)(dst + 32), AB);
    _mm_storel_epi64((__m128i *)(dst + 48), _mm_unpackhi_epi64(AB, AB));
}

/* The low halves of eight words to eight halves at dst. */
static inline void put_halves(ox_half *dst, __m256i words)
{
    __m256i x = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    x = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
    _mm_storeu_si128((__m128i *)dst, _mm256_castsi256_si128(x));
}

static inline void put_scales_Q4_K(ox_q4_kx16 *dst, int half, const __m256i head[4])
{
    __m256i six = every_byte(63), low = every_byte(15), top = every_byte(0x30);
    __m256i scale = _mm256_and_si256(head[1], six), min = _mm256_and_si256(head[2], six);
    put_halves(dst->d + 8 * half, head[0]);
    put_halves(dst->dmin + 8 * half, _mm256_srli_epi32(head[0], 16));
    put_bytes(dst->scales[0] + 8 * half, scale);
    put_bytes(dst->mins[0] + 8 * half, min);
    scale = _mm256_or_si256(_mm256_and_si256(head[3], low), _mm256_and_si256(_mm256_srli_epi32(head[1], 2), top));
    min = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(head[3], 4), low),
                          _mm256_and_si256(_mm256_srli_epi32(head[2], 2), top));
    put_bytes(dst->scales[4] + 8 * half, scale);
    put_bytes(dst->mins[4] + 8 * half, min);
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
            put_scales_Q4_K(dst, half, w);
            for (int c = 0; c < 8; c += 2) {
                eight_words(s + 16 + 16 * c, stride, w);
                for (int v = 0; v < 4; v++) {
                    store(dst->qs[c][v] + 32 * half, low_nibbles(w, v));
                    store(dst->qs[c + 1][v] + 32 * half, high_nibbles(w, v));
                }
            }
        }
}

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
}
