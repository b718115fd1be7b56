/* The vector vocabulary of the generic bodies, in 512 bits: AVX-512 F, BW, DQ, VL and VNNI. */
#include <immintrin.h>
#include <stdint.h>

#define VL 16 /* floats in a vector */
#define VB 64 /* bytes in a vector */
#define NV 1  /* vectors in a panel of 16 rows */
/* Register blocking, for 32 registers. */
#define FLOAT_TILE 6
#define FLOAT_PANELS 4
#define SCORE_ROWS 8
#define SCORE_ACC 16 /* accumulators of a block of scores */
#define VALUE_ROWS 4
#define SCAN_STATES 16 /* values of each channel of a panel */
#define DELTA_PANELS 2 /* of a state's columns, for which queries and keys are loaded once */
#define TILE_PANELS 2 /* whose products share the loads of activations */
#define DOT_TOKENS 8 /* sums in flight: a product takes four cycles */
#define V static inline __attribute__((always_inline))

typedef __m512 vf;
typedef __m512i vi; /* 32-bit integers */
typedef __m512i vb; /* bytes */

V vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
V void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
/* Past the caches, to a multiple of 64 bytes; visible to other threads after vf_fence(). */
V void vf_stream(float *p, vf x) { _mm512_stream_ps(p, x); }
V void vf_fence(void) { _mm_sfence(); }
V vf vf_set1(float x) { return _mm512_set1_ps(x); }
V vf vf_zero(void) { return _mm512_setzero_ps(); }
V vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
V vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
V vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
V vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
V vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
V vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
V vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
V vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
V vf vf_round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* Halves are added, lane j + 8 to j, j + 4, j + 2 and j + 1: compilers' own reductions may take another order. */
V float vf_sum(vf x)
{
    __m256 t = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
V float vf_reduce_max(vf x)
{
    __m256 t = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
V vf vf_from_int(vi x) { return _mm512_cvtepi32_ps(x); }
V vf vf_from_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
/* Lanes whose low 16 bits are those of a half, and whose high bits are zero. */
V vf vf_from_half_bits(vi x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }
V vf vf_from_bits(vi x) { return _mm512_castsi512_ps(x); }
/* Lane r: element `odd` of the pair r of bfloat16 values. */
V vf vf_from_bf16_pair(const uint16_t *p, int odd)
{
    __m512i x = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(odd ? _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000))
                                   : _mm512_slli_epi32(x, 16));
}
V void vf_to_half(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* x * 2^n for whole n that keep the result normal. */
V vf vf_scale_exp2(vf x, vf n)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}
V vf vf_zero_below(vf value, vf x, vf bound)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), value);
}

V vi vi_zero(void) { return _mm512_setzero_si512(); }
V vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
V vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
V vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
V vi vi_shl(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
V vi vi_load(const uint32_t *p) { return _mm512_loadu_si512(p); }
V vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
V vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
V vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
V vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
V vi vi_shr(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); } /* zeros come in */
V vi vi_from_u16(const uint16_t *p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)); }
V vi vi_from_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
V vi vi_from_i8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
/* s + four products of unsigned bytes of w with signed bytes of x, in each lane. */
V vi vi_dot(vi s, vb w, vb x) { return _mm512_dpbusd_epi32(s, w, x); }
V vb vb_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
V void vb_store(uint8_t *p, vb x) { _mm512_storeu_si512(p, x); }
V vb vb_set1(char x) { return _mm512_set1_epi8(x); }
V vb vb_set4(const uint8_t *p) { return _mm512_set1_epi32(*(const int32_t *)p); }
V vb vb_and(vb a, vb b) { return _mm512_and_si512(a, b); }
V vb vb_or(vb a, vb b) { return _mm512_or_si512(a, b); }
V vb vb_xor(vb a, vb b) { return _mm512_xor_si512(a, b); }
V vb vb_add(vb a, vb b) { return _mm512_add_epi8(a, b); }
V vb vb_from_words(vi a) { return a; }
/* A table of 16 codes, and the codes of indices 0..15. */
V vb vb_table(const int8_t *codes) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)codes)); }
V vb vb_lookup(vb table, vb i) { return _mm512_shuffle_epi8(table, i); }
/* Products of 16-bit units: their low and their high half. */
V vb vb_mul16_low(vb a, int x) { return _mm512_mullo_epi16(a, _mm512_set1_epi16((short)x)); }
V vb vb_mul16_high(vb a, int x) { return _mm512_mulhi_epu16(a, _mm512_set1_epi16((short)x)); }
/* The 64 entries that one permutation reaches. */
V vb vb_permute_64(const uint16_t *table, vb i)
{
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(table), i, _mm512_loadu_si512(table + 32));
}
V vb vb_permute_256(const uint16_t *table, vb i)
{
    __mmask32 m6 = _mm512_test_epi16_mask(i, _mm512_set1_epi16(64));
    __mmask32 m7 = _mm512_test_epi16_mask(i, _mm512_set1_epi16(128));
    vb low = _mm512_mask_blend_epi16(m6, vb_permute_64(table, i), vb_permute_64(table + 64, i));
    vb high = _mm512_mask_blend_epi16(m6, vb_permute_64(table + 128, i), vb_permute_64(table + 192, i));
    return _mm512_mask_blend_epi16(m7, low, high);
}
/* Entries of a table of 1 << bits 16-bit words, and one more, for the index in each 16-bit unit. Permutations beat
 * gathers up to 1024 entries: there one token of IQ2_S runs at 54 GOPS instead of 40, on Zen 4. */
V vb vb_lookup_16(const uint16_t *table, int bits, vb i)
{
    if (bits <= 10) {
        vb part = _mm512_srli_epi16(i, 8), entry = vb_permute_256(table, i);
        for (int j = 1; j < 1 << (bits - 8); j++) {
            __mmask32 m = _mm512_cmpeq_epi16_mask(part, _mm512_set1_epi16((short)j));
            entry = _mm512_mask_blend_epi16(m, entry, vb_permute_256(table + 256 * j, i));
        }
        return entry;
    }
    __m512i low = _mm512_set1_epi32(0xffff);
    __m512i even = _mm512_i32gather_epi32(_mm512_and_si512(i, low), table, 2);
    __m512i odd = _mm512_i32gather_epi32(_mm512_srli_epi32(i, 16), table, 2);
    return _mm512_or_si512(_mm512_and_si512(even, low), _mm512_slli_epi32(odd, 16));
}
/* `yes` in the bytes of which `test` has the one bit that `bit` has there, `no` in the others. */
V vb vb_choose(vb test, vb bit, vb yes, vb no)
{
    return _mm512_mask_blend_epi8(_mm512_test_epi8_mask(test, bit), no, yes);
}
V vb vb_sub(vb a, vb b) { return _mm512_sub_epi8(a, b); }
/* Shifts of 16-bit units: bits cross from one byte to its neighbour, callers mask them off. */
V vb vb_shr(vb a, int n) { return _mm512_srli_epi16(a, (unsigned)n); }
V vb vb_shl(vb a, int n) { return _mm512_slli_epi16(a, (unsigned)n); }

/* Of 64 numbers of 14 bits, in their order, the high seven bits and the low ones. With a shift, a mask and two stores of
 * bytes for each vector, attention over coded values took 1.05 times as long (Emerald Rapids). */
V void vi_store_halves(uint8_t *high, uint8_t *low, const vi *x)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i a = _mm512_packus_epi32(x[0], x[1]), b = _mm512_packus_epi32(x[2], x[3]), m = _mm512_set1_epi16(127);
    const __m512i h = _mm512_packus_epi16(_mm512_srli_epi16(a, 7), _mm512_srli_epi16(b, 7));
    const __m512i l = _mm512_packus_epi16(_mm512_and_si512(a, m), _mm512_and_si512(b, m));
    _mm512_storeu_si512(high, _mm512_permutexvar_epi32(order, h));
    _mm512_storeu_si512(low, _mm512_permutexvar_epi32(order, l));
}

V vi vi_magnitude(vf x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
V vi vi_max_u(vi a, vi b) { return _mm512_max_epu32(a, b); }
V uint32_t vi_reduce_max_u(vi x) { return _mm512_reduce_max_epu32(x); }
V vi vi_from_float(vf x) { return _mm512_cvtps_epi32(x); }
V int32_t vi_sum(vi x) { return _mm512_reduce_add_epi32(x); }
V void vi_store_i8(int8_t *p, vi x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x)); }
