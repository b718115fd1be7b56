/* Fields of blocks as files store them, of as many rows as a vector has lanes. After a tier's vocab.h and its pack.h,
 * which puts words of rows side by side. */
#ifndef OX_STORED_H
#define OX_STORED_H

INLINE int16_t half_at(const uint8_t *p)
{
    int16_t half;
    memcpy(&half, p, 2);
    return half;
}

/* One half of each of eight rows. (The place of an insertion must be a constant before Clang unrolls a loop.) */
INLINE __m128i eight_halves(const uint8_t *src, size_t stride)
{
    return _mm_setr_epi16(half_at(src), half_at(src + stride), half_at(src + 2 * stride), half_at(src + 3 * stride),
                          half_at(src + 4 * stride), half_at(src + 5 * stride), half_at(src + 6 * stride),
                          half_at(src + 7 * stride));
}

/* One half of each row, as a float or as an integer. */
#if VL == 16
INLINE __m256i halves_of(const uint8_t *src, size_t stride)
{
    return _mm256_set_m128i(eight_halves(src + 8 * stride, stride), eight_halves(src, stride));
}
INLINE vf vf_of_halves(const uint8_t *src, size_t stride) { return _mm512_cvtph_ps(halves_of(src, stride)); }
INLINE vi vi_of_halves(const uint8_t *src, size_t stride) { return _mm512_cvtepu16_epi32(halves_of(src, stride)); }
#else
INLINE vf vf_of_halves(const uint8_t *src, size_t stride) { return _mm256_cvtph_ps(eight_halves(src, stride)); }
INLINE vi vi_of_halves(const uint8_t *src, size_t stride) { return _mm256_cvtepu16_epi32(eight_halves(src, stride)); }
#endif
/* The two halves of each word. */
INLINE vf first_halves(vi words) { return vf_from_half_bits(vi_and(words, vi_set1(0xffff))); }
INLINE vf second_halves(vi words) { return vf_from_half_bits(vi_shr(words, 16)); }

/* Bits n places up, or down; those of other bytes come in. */
INLINE vi vi_moved(vi x, int n) { return n < 0 ? vi_shr(x, -n) : vi_shl(x, n); }

/* Scales and minima of Q4_K and Q5_K, a byte each, of the first 16 bytes of a block: words of chunks 0..3 and 4..7. */
INLINE void six_bit_scales(const vi head[4], vi scales[2], vi mins[2])
{
    vi six = vb_set1(63), low = vb_set1(15), top = vb_set1(0x30);
    scales[0] = vi_and(head[1], six);
    mins[0] = vi_and(head[2], six);
    scales[1] = vi_or(vi_and(head[3], low), vi_and(vi_shr(head[1], 2), top));
    mins[1] = vi_or(vi_and(vi_shr(head[3], 4), low), vi_and(vi_shr(head[2], 2), top));
}

#endif
