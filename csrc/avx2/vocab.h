/* The vector vocabulary of the generic bodies, in 256 bits: AVX2, FMA and F16C. The tier above includes it
 * too, compiled with AVX-VNNI (csrc/avx_vnni). */
#include <immintrin.h>
#include <stdint.h>

#define VL 8  /* floats in a vector */
#define VB 32 /* bytes in a vector */
#define NV 2  /* vectors in a panel of 16 rows */
/* Without AVX-VNNI, products of bytes are added in 16 bits first. */
#ifdef __AVXVNNI__
#define DOT_TOKENS 8 /* sums in flight: a product takes four or five cycles */
#else
#define DOT_IS_7_BIT 1
#endif
/* Register blocking, for 16 registers. */
#define FLOAT_TILE 6
#define FLOAT_PANELS 1
#define SCORE_ROWS 4
#define VALUE_ROWS 2
#define SCAN_STATES 4
#define DELTA_PANELS 1
#define V static inline __attribute__((always_inline))

typedef __m256 vf;
typedef __m256i vi; /* 32-bit integers */
typedef __m256i vb; /* bytes */

V vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
V void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
/* Past the caches, to a multiple of 32 bytes; visible to other threads after vf_fence(). */
V void vf_stream(float *p, vf x) { _mm256_stream_ps(p, x); }
V void vf_fence(void) { _mm_sfence(); }
V vf vf_set1(float x) { return _mm256_set1_ps(x); }
V vf vf_zero(void) { return _mm256_setzero_ps(); }
V vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
V vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
V vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
V vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
V vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
V vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
V vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
V vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
V vf vf_round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* Halves are added, lane j + 4 to j, j + 2 and j + 1. */
V float vf_sum(vf x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
V float vf_reduce_max(vf x)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
V vf vf_from_int(vi x) { return _mm256_cvtepi32_ps(x); }
V vf vf_from_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
/* Lanes whose low 16 bits are those of a half, and whose high bits are zero. */
V vf vf_from_half_bits(vi x)
{
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
V vf vf_from_bits(vi x) { return _mm256_castsi256_ps(x); }
/* Lane r: element `odd` of the pair r of bfloat16 values. A blend with zero, not a mask: zero needs no register of the
 * sixteen, of which a tile takes fifteen. */
V vf vf_from_bf16_pair(const uint16_t *p, int odd)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    return _mm256_castsi256_ps(odd ? _mm256_blend_epi16(_mm256_setzero_si256(), x, 0xaa) : _mm256_slli_epi32(x, 16));
}
V void vf_to_half(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* x * 2^n for whole n that keep the result normal. */
V vf vf_scale_exp2(vf x, vf n)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
V vf vf_zero_below(vf value, vf x, vf bound) { return _mm256_and_ps(value, _mm256_cmp_ps(x, bound, _CMP_NLT_UQ)); }

V vi vi_zero(void) { return _mm256_setzero_si256(); }
V vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
V vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
V vi vi_mul(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
V vi vi_shl(vi a, int n) { return _mm256_slli_epi32(a, n); }
V vi vi_load(const uint32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
V vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
V vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
V vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
V vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
V vi vi_shr(vi a, int n) { return _mm256_srli_epi32(a, n); } /* zeros come in */
V vi vi_from_u16(const uint16_t *p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)); }
V vi vi_from_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
V vi vi_from_i8(const int8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
#ifdef __AVXVNNI__
/* s + four products of unsigned bytes of w with signed bytes of x, in each lane. */
V vi vi_dot(vi s, vb w, vb x) { return _mm256_dpbusd_avx_epi32(s, w, x); }
#else
/* s + four products of unsigned bytes of w (below 128, else pairs saturate) with signed bytes of x, in each lane. */
V vi vi_dot(vi s, vb w, vb x)
{
    return _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
/* The same for signed w: |w| times x with the sign of w. Exact while x is above -128. */
V vi vi_dot_signed(vi s, vb w, vb x) { return vi_dot(s, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w)); }
/* Keeps a sum in its register, and the compiler from making a tree of a chain: with eight in flight that spills. */
#define PIN(x) __asm__("" : "+x"(x))
/* The low 16 bits of each lane, twice. */
V vi vi_twice_16(vi x) { return _mm256_blend_epi16(x, _mm256_slli_epi32(x, 16), 0xaa); }
/* s[t] (= if `set`, else +=) unit * products of n vectors of codes below 1 << bits with the bytes, -127 to 127, at
 * x[t] + at, for T <= 8 tokens; `unit` is a number of 16 bits, twice in each lane. Pairs of products are added in 16
 * bits as often as they can't overflow, and only then widened: 4-bit codes in runs of eight vectors (8 * 2 * 15 * 127
 * < 2^15), 5-bit codes of four, 6-bit codes of two. */
#define HAVE_DOTS 1
V void vi_dots(vi *s, int set, const vb *w, vi unit, const uint8_t *const *x, int64_t at, int n, int bits, const int T)
{
    const int run = 32767 / (2 * 127 * ((1 << bits) - 1));
    vi pairs[8];
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) {
        const int first = v % run == 0, last = v % run == run - 1 || v == n - 1;
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            vi p = _mm256_maddubs_epi16(w[v], _mm256_set1_epi32(*(const int32_t *)(x[t] + at + 4 * v)));
            pairs[t] = first ? p : _mm256_add_epi16(pairs[t], p);
            PIN(pairs[t]);
        }
#pragma GCC unroll 8
        for (int t = 0; last && t < T; t++) {
            vi sum = _mm256_madd_epi16(pairs[t], unit);
            s[t] = v < run && set ? sum : _mm256_add_epi32(s[t], sum);
            PIN(s[t]);
        }
    }
}
/* The same for n vectors of signed bytes w, -128 to 127. Few tokens take |w| and x with the sign of w. For eight,
 * flipping x's bits where w is negative is cheaper, since signs occupy the multipliers: -x - 1 instead of -x takes off
 * |w| too much, once for all tokens. A pair then reaches -2^15 (2 * 128 * -128), which fits. */
V void vi_dots_signed(vi *s, const vb *w, const uint8_t *const *x, int64_t at, int n, const int T)
{
    const int flip = T >= 8;
    const vi zero = _mm256_setzero_si256(), one = _mm256_set1_epi16(1);
    vi off = zero;
#pragma GCC unroll 8
    for (int v = 0; flip && v < n; v++)
        off = _mm256_add_epi16(off, _mm256_maddubs_epi16(_mm256_abs_epi8(w[v]), _mm256_cmpgt_epi8(zero, w[v])));
    off = _mm256_madd_epi16(off, one);
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) {
        vb size = _mm256_abs_epi8(w[v]), negative = _mm256_cmpgt_epi8(zero, w[v]);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            vb q = _mm256_set1_epi32(*(const int32_t *)(x[t] + at + 4 * v));
            q = flip ? _mm256_xor_si256(q, negative) : _mm256_sign_epi8(q, w[v]);
            vi sum = _mm256_madd_epi16(_mm256_maddubs_epi16(size, q), one);
            s[t] = v > 0 ? _mm256_add_epi32(s[t], sum) : flip ? _mm256_sub_epi32(sum, off) : sum;
            PIN(s[t]);
        }
    }
}
#endif
V vb vb_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
V void vb_store(uint8_t *p, vb x) { _mm256_storeu_si256((__m256i *)p, x); }
V vb vb_set1(char x) { return _mm256_set1_epi8(x); }
V vb vb_set4(const uint8_t *p) { return _mm256_set1_epi32(*(const int32_t *)p); }
V vb vb_and(vb a, vb b) { return _mm256_and_si256(a, b); }
V vb vb_or(vb a, vb b) { return _mm256_or_si256(a, b); }
V vb vb_xor(vb a, vb b) { return _mm256_xor_si256(a, b); }
V vb vb_add(vb a, vb b) { return _mm256_add_epi8(a, b); }
V vb vb_from_words(vi a) { return a; }
/* A table of 16 codes, and the codes of indices 0..15. */
V vb vb_table(const int8_t *codes) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)codes)); }
V vb vb_lookup(vb table, vb i) { return _mm256_shuffle_epi8(table, i); }
/* Products of 16-bit units: their low and their high half. */
V vb vb_mul16_low(vb a, int x) { return _mm256_mullo_epi16(a, _mm256_set1_epi16((short)x)); }
V vb vb_mul16_high(vb a, int x) { return _mm256_mulhi_epu16(a, _mm256_set1_epi16((short)x)); }
/* Entries of a table of 1 << bits 16-bit words, and one more, for the index in each 16-bit unit. */
V vb vb_lookup_16(const uint16_t *table, int bits, vb i)
{
    (void)bits;
    __m256i low = _mm256_set1_epi32(0xffff);
    __m256i even = _mm256_i32gather_epi32((const int *)table, _mm256_and_si256(i, low), 2);
    __m256i odd = _mm256_i32gather_epi32((const int *)table, _mm256_srli_epi32(i, 16), 2);
    return _mm256_or_si256(_mm256_and_si256(even, low), _mm256_slli_epi32(odd, 16));
}
/* `yes` in the bytes of which `test` has the one bit that `bit` has there, `no` in the others. */
V vb vb_choose(vb test, vb bit, vb yes, vb no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_cmpeq_epi8(_mm256_and_si256(test, bit), bit));
}
V vb vb_sub(vb a, vb b) { return _mm256_sub_epi8(a, b); }
/* Shifts of 16-bit units: bits cross from one byte to its neighbour, callers mask them off. */
V vb vb_shr(vb a, int n) { return _mm256_srli_epi16(a, n); }
V vb vb_shl(vb a, int n) { return _mm256_slli_epi16(a, n); }

V vi vi_magnitude(vf x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }
V vi vi_max_u(vi a, vi b) { return _mm256_max_epu32(a, b); }
V uint32_t vi_reduce_max_u(vi x)
{
    __m128i s = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_max_epu32(s, _mm_shuffle_epi32(s, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(s, _mm_shuffle_epi32(s, 0xb1)));
}
V vi vi_from_float(vf x) { return _mm256_cvtps_epi32(x); }
V int32_t vi_sum(vi x)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
V void vi_store_i8(int8_t *p, vi x)
{
    __m128i s = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(s, s));
}
/* Of 64 numbers of 14 bits, in their order, the high seven bits and the low ones. */
V void vi_store_halves(uint8_t *high, uint8_t *low, const vi *x)
{
    _Pragma("GCC unroll 16") for (int i = 0; i < 64 / VL; i++) {
        vi_store_i8((int8_t *)high + i * VL, vi_shr(x[i], 7));
        vi_store_i8((int8_t *)low + i * VL, vi_and(x[i], vi_set1(127)));
    }
}
