/* Words of sixteen rows side by side, and what can be made of them: what generic/pack.h is made of. */
#ifndef OX_AVX512_PACK_H
#define OX_AVX512_PACK_H
#include <string.h>
#include "../generic/inline.h"

INLINE __m512i four_rows(const uint8_t *src, size_t stride)
{
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)src));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(src + stride)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(src + 2 * stride)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(src + 3 * stride)), 3);
}

/* Four words of each of sixteen rows: word v of all rows in w[v]. */
INLINE void four_words(const uint8_t *src, size_t stride, __m512i w[4])
{
    __m512i a = four_rows(src, 4 * stride), b = four_rows(src + stride, 4 * stride);
    __m512i c = four_rows(src + 2 * stride, 4 * stride), d = four_rows(src + 3 * stride, 4 * stride);
    __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    __m512i AB = _mm512_unpackhi_epi32(a, b), CD = _mm512_unpackhi_epi32(c, d);
    w[0] = _mm512_unpacklo_epi64(ab, cd);
    w[1] = _mm512_unpackhi_epi64(ab, cd);
    w[2] = _mm512_unpacklo_epi64(AB, CD);
    w[3] = _mm512_unpackhi_epi64(AB, CD);
}

/* Rows first + r and first + 4 + r for r < 4, as two lanes of 16 bytes each: words v and v + 4 of all eight in w[v]. */
INLINE void four_pairs(const uint8_t *src, size_t stride, __m512i w[4])
{
    __m512i x[4];
    for (int r = 0; r < 4; r++) {
        x[r] = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(src + (size_t)r * stride)));
        x[r] = _mm512_inserti64x4(x[r], _mm256_loadu_si256((const __m256i *)(src + (size_t)(r + 4) * stride)), 1);
    }
    __m512i ab = _mm512_unpacklo_epi32(x[0], x[1]), cd = _mm512_unpacklo_epi32(x[2], x[3]);
    __m512i AB = _mm512_unpackhi_epi32(x[0], x[1]), CD = _mm512_unpackhi_epi32(x[2], x[3]);
    w[0] = _mm512_unpacklo_epi64(ab, cd);
    w[1] = _mm512_unpackhi_epi64(ab, cd);
    w[2] = _mm512_unpacklo_epi64(AB, CD);
    w[3] = _mm512_unpackhi_epi64(AB, CD);
}

/* Eight words of each: loads of 32 bytes, since those of 16 cross twice as many lines. */
INLINE void eight_words(const uint8_t *src, size_t stride, __m512i w[8])
{
    __m512i low[4], high[4];
    four_pairs(src, stride, low);
    four_pairs(src + 8 * stride, stride, high);
    for (int v = 0; v < 4; v++) {
        w[v] = _mm512_shuffle_i32x4(low[v], high[v], 0x88);
        w[v + 4] = _mm512_shuffle_i32x4(low[v], high[v], 0xdd);
    }
}

/* As many as there are rows. */
INLINE void turn_words(const uint8_t *src, size_t stride, __m512i w[16])
{
    __m512i x[16];
    UNROLL for (int r = 0; r < 16; r += 4) { /* words r, r + 4, r + 8 and r + 12 of four rows */
        __m512i a = _mm512_loadu_si512(src + (size_t)r * stride);
        __m512i b = _mm512_loadu_si512(src + (size_t)(r + 1) * stride);
        __m512i c = _mm512_loadu_si512(src + (size_t)(r + 2) * stride);
        __m512i d = _mm512_loadu_si512(src + (size_t)(r + 3) * stride);
        __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
        __m512i AB = _mm512_unpackhi_epi32(a, b), CD = _mm512_unpackhi_epi32(c, d);
        x[r] = _mm512_unpacklo_epi64(ab, cd);
        x[r + 1] = _mm512_unpackhi_epi64(ab, cd);
        x[r + 2] = _mm512_unpacklo_epi64(AB, CD);
        x[r + 3] = _mm512_unpackhi_epi64(AB, CD);
    }
    UNROLL for (int v = 0; v < 4; v++) {
        __m512i a = _mm512_shuffle_i32x4(x[v], x[v + 4], 0x88), b = _mm512_shuffle_i32x4(x[v + 8], x[v + 12], 0x88);
        __m512i A = _mm512_shuffle_i32x4(x[v], x[v + 4], 0xdd), B = _mm512_shuffle_i32x4(x[v + 8], x[v + 12], 0xdd);
        w[v] = _mm512_shuffle_i32x4(a, b, 0x88);
        w[v + 4] = _mm512_shuffle_i32x4(A, B, 0x88);
        w[v + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
        w[v + 12] = _mm512_shuffle_i32x4(A, B, 0xdd);
    }
}

/* Columns v, v + 8, v + 16 and v + 24 of 32 halves: of eight rows in w[v], of the other eight in w[v + 8]. */
INLINE void turn_halves(const uint8_t *src, size_t stride, __m512i w[16])
{
    UNROLL for (int first = 0; first < 16; first += 8) {
        __m512i x[8], y[8];
        UNROLL for (int r = 0; r < 8; r += 2) {
            __m512i a = _mm512_loadu_si512(src + (size_t)(first + r) * stride);
            __m512i b = _mm512_loadu_si512(src + (size_t)(first + r + 1) * stride);
            x[r] = _mm512_unpacklo_epi16(a, b);
            x[r + 1] = _mm512_unpackhi_epi16(a, b);
        }
        UNROLL for (int r = 0; r < 8; r += 4)
            UNROLL for (int high = 0; high < 2; high++) {
                y[r + 2 * high] = _mm512_unpacklo_epi32(x[r + high], x[r + 2 + high]);
                y[r + 2 * high + 1] = _mm512_unpackhi_epi32(x[r + high], x[r + 2 + high]);
            }
        UNROLL for (int v = 0; v < 4; v++) {
            w[first + 2 * v] = _mm512_unpacklo_epi64(y[v], y[v + 4]);
            w[first + 2 * v + 1] = _mm512_unpackhi_epi64(y[v], y[v + 4]);
        }
    }
}

/* Of what it gives, column j as floats. */
INLINE __m512 column_halves(const __m512i *w, int j)
{
    const int lane = j / 8 * 2;
    const __m512i lanes = _mm512_setr_epi64(lane, lane + 1, 8 + lane, 9 + lane, 0, 0, 0, 0);
    return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutex2var_epi64(w[j % 8], lanes, w[8 + j % 8])));
}

INLINE void store(void *dst, __m512i x) { _mm512_storeu_si512(dst, x); }

/* Bytes of words: byte i of the words of sixteen rows to the sixteen bytes at dst + 16 * i. */
INLINE void put_bytes(uint8_t *dst, __m512i words)
{
    const __m512i by_byte = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i by_row = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    store(dst, _mm512_permutexvar_epi32(by_row, _mm512_shuffle_epi8(words, by_byte)));
}

/* The low halves of sixteen words to sixteen halves at dst. */
INLINE void put_halves(ox_half *dst, __m512i words)
{
    _mm256_storeu_si256((__m256i *)dst, _mm512_cvtepi32_epi16(words));
}

#endif
