/* Words of eight rows side by side, and what can be made of them: what generic/pack.h is made of. */
#ifndef OX_AVX2_PACK_H
#define OX_AVX2_PACK_H
#include <string.h>
#include "../generic/inline.h"

INLINE __m256i both(const uint8_t *low, const uint8_t *high)
{
    __m128i a = _mm_loadu_si128((const __m128i *)low);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), _mm_loadu_si128((const __m128i *)high), 1);
}

/* Four words of each of eight rows: word v of all rows in w[v]. */
INLINE void four_words(const uint8_t *src, size_t stride, __m256i w[4])
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

INLINE void eight_words(const uint8_t *src, size_t stride, __m256i w[8])
{
    four_words(src, stride, w);
    four_words(src + 16, stride, w + 4);
}

/* As many as there are rows. */
INLINE void turn_words(const uint8_t *src, size_t stride, __m256i w[8]) { eight_words(src, stride, w); }

/* Columns v and v + 8 of 16 halves, of all eight rows, in w[v]. */
INLINE void turn_halves(const uint8_t *src, size_t stride, __m256i w[8])
{
    __m256i x[8], y[8];
    for (int r = 0; r < 8; r += 2) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(src + (size_t)r * stride));
        __m256i b = _mm256_loadu_si256((const __m256i *)(src + (size_t)(r + 1) * stride));
        x[r] = _mm256_unpacklo_epi16(a, b);
        x[r + 1] = _mm256_unpackhi_epi16(a, b);
    }
    for (int r = 0; r < 8; r += 4)
        for (int high = 0; high < 2; high++) {
            y[r + 2 * high] = _mm256_unpacklo_epi32(x[r + high], x[r + 2 + high]);
            y[r + 2 * high + 1] = _mm256_unpackhi_epi32(x[r + high], x[r + 2 + high]);
        }
    for (int v = 0; v < 4; v++) {
        w[2 * v] = _mm256_unpacklo_epi64(y[v], y[v + 4]);
        w[2 * v + 1] = _mm256_unpackhi_epi64(y[v], y[v + 4]);
    }
}

/* Of what it gives, column j as floats. */
INLINE __m256 column_halves(const __m256i *w, int j)
{
    return _mm256_cvtph_ps(j < 8 ? _mm256_castsi256_si128(w[j]) : _mm256_extracti128_si256(w[j - 8], 1));
}

INLINE void store(void *dst, __m256i x) { _mm256_storeu_si256((__m256i *)dst, x); }

/* Bytes of words: byte i of the words of eight rows to the eight bytes at dst + 16 * i. */
INLINE void put_bytes(uint8_t *dst, __m256i words)
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
INLINE void put_halves(ox_half *dst, __m256i words)
{
    __m256i x = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    x = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
    _mm_storeu_si128((__m128i *)dst, _mm256_castsi256_si128(x));
}

#endif
