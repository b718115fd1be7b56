/* The vector vocabulary of the generic bodies, in 128 bits: AArch64 NEON. The tier above includes it too, compiled with
 * the dot product instructions (csrc/neon_dot). Unlike on x86, vectors of integers and of bytes are different types
 * here: a body that mixes them up doesn't compile. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define VL 4  /* floats in a vector */
#define VB 16 /* bytes in a vector */
#define NV 4  /* vectors in a panel of 16 rows */
#define DOT_IS_7_BIT 1
/* Register blocking, for 32 registers. */
#define FLOAT_TILE 6
#define FLOAT_PANELS 1
#define SCORE_ROWS 4
#define VALUE_ROWS 4
#define SCAN_STATES 4
#define DELTA_PANELS 1
#define V static inline __attribute__((always_inline))

typedef float32x4_t vf;
typedef int32x4_t vi; /* 32-bit integers */
typedef uint8x16_t vb; /* bytes */

/* Bits of one kind of vector as another. */
#define U32(x) vreinterpretq_u32_s32(x)
#define S32(x) vreinterpretq_s32_u32(x)
#define U16(x) vreinterpretq_u16_u8(x)
#define U8(x) vreinterpretq_u8_u16(x)

V vf vf_load(const float *p) { return vld1q_f32(p); }
V void vf_store(float *p, vf x) { vst1q_f32(p, x); }
V void vf_stream(float *p, vf x) { vst1q_f32(p, x); } /* caches decide by themselves */
V void vf_fence(void) {}
V vf vf_set1(float x) { return vdupq_n_f32(x); }
V vf vf_zero(void) { return vdupq_n_f32(0); }
V vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
V vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
V vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
V vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
/* The second where one is NaN, or both are zeros, as on x86: vminq_f32 and vmaxq_f32 take another zero. */
V vf vf_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
V vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
V vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
V vf vf_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }
V vf vf_round(vf x) { return vrndnq_f32(x); }
/* Lane j + 2 is added to j, and j + 1: vaddvq_f32 adds neighbours first. */
V float vf_sum(vf x) { return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x))); }
V float vf_reduce_max(vf x) { return vmaxvq_f32(x); }
V vf vf_from_int(vi x) { return vcvtq_f32_s32(x); }
V vf vf_from_half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
/* Lanes whose low 16 bits are those of a half, and whose high bits are zero. */
V vf vf_from_half_bits(vi x) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(U32(x)))); }
V vf vf_from_bits(vi x) { return vreinterpretq_f32_s32(x); }
/* Lane r: element `odd` of the pair r of bfloat16 values. */
V vf vf_from_bf16_pair(const uint16_t *p, int odd)
{
    uint32x4_t x = vreinterpretq_u32_u16(vld1q_u16(p));
    return vreinterpretq_f32_u32(odd ? vandq_u32(x, vdupq_n_u32(0xffff0000)) : vshlq_n_u32(x, 16));
}
V void vf_to_half(uint16_t *p, vf x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
/* x * 2^n for whole n that keep the result normal. */
V vf vf_scale_exp2(vf x, vf n)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(vcvtnq_s32_f32(n), 23)));
}
V vf vf_zero_below(vf value, vf x, vf bound)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), vcltq_f32(x, bound)));
}

V vi vi_zero(void) { return vdupq_n_s32(0); }
V vi vi_set1(int32_t x) { return vdupq_n_s32(x); }
V vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
V vi vi_mul(vi a, vi b) { return vmulq_s32(a, b); }
/* Shifts as operators, not vshlq_n: n need not be a constant. */
V vi vi_shl(vi a, int n) { return S32(U32(a) << vdupq_n_u32((uint32_t)n)); }
V vi vi_shr(vi a, int n) { return S32(U32(a) >> vdupq_n_u32((uint32_t)n)); } /* zeros come in */
V vi vi_load(const uint32_t *p) { return S32(vld1q_u32(p)); }
V vi vi_sub(vi a, vi b) { return vsubq_s32(a, b); }
V vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
V vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
V vi vi_xor(vi a, vi b) { return veorq_s32(a, b); }
V vi vi_from_u16(const uint16_t *p) { return S32(vmovl_u16(vld1_u16(p))); }
V uint32_t four_bytes(const void *p) { uint32_t u; memcpy(&u, p, 4); return u; }
V vi vi_from_u8(const uint8_t *p)
{
    return S32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four_bytes(p))))));
}
V vi vi_from_i8(const int8_t *p) { return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four_bytes(p))))); }
/* s + four products of signed bytes of w and of x, in each lane. Without the dot product instruction, two products are
 * added in 16 bits: exact while one of the two is above -128. */
V vi vi_dot_signed(vi s, vb w, vb x)
{
    int8x16_t a = vreinterpretq_s8_u8(w), b = vreinterpretq_s8_u8(x);
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(s, a, b);
#else
    int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vpadalq_s16(s, vpaddq_s16(low, high));
#endif
}
#ifdef __ARM_FEATURE_DOTPROD
/* The same of four vectors of w with 16 bytes, which are loaded once: vector v with bytes 4v to 4v + 3. */
#define HAVE_QUADS 1
V vi vi_dot_quad(vi s, const vb *w, const uint8_t *p)
{
    int8x16_t x = vreinterpretq_s8_u8(vld1q_u8(p));
    s = vdotq_laneq_s32(s, vreinterpretq_s8_u8(w[0]), x, 0);
    s = vdotq_laneq_s32(s, vreinterpretq_s8_u8(w[1]), x, 1);
    s = vdotq_laneq_s32(s, vreinterpretq_s8_u8(w[2]), x, 2);
    return vdotq_laneq_s32(s, vreinterpretq_s8_u8(w[3]), x, 3);
}
#endif
/* The same for unsigned w below 128. */
V vi vi_dot(vi s, vb w, vb x) { return vi_dot_signed(s, w, x); }
V vb vb_load(const uint8_t *p) { return vld1q_u8(p); }
V void vb_store(uint8_t *p, vb x) { vst1q_u8(p, x); }
V vb vb_set1(char x) { return vdupq_n_u8((uint8_t)x); }
V vb vb_set4(const uint8_t *p) { return vreinterpretq_u8_u32(vdupq_n_u32(four_bytes(p))); }
V vb vb_and(vb a, vb b) { return vandq_u8(a, b); }
V vb vb_or(vb a, vb b) { return vorrq_u8(a, b); }
V vb vb_xor(vb a, vb b) { return veorq_u8(a, b); }
V vb vb_add(vb a, vb b) { return vaddq_u8(a, b); }
V vb vb_from_words(vi a) { return vreinterpretq_u8_s32(a); }
/* A table of 16 codes, and the codes of indices 0..15. */
V vb vb_table(const int8_t *codes) { return vreinterpretq_u8_s8(vld1q_s8(codes)); }
V vb vb_lookup(vb table, vb i) { return vqtbl1q_u8(table, i); }
/* Products of 16-bit units: their low and their high half. */
V vb vb_mul16_low(vb a, int x) { return U8(vmulq_n_u16(U16(a), (uint16_t)x)); }
V vb vb_mul16_high(vb a, int x)
{
    uint32x4_t low = vmull_n_u16(vget_low_u16(U16(a)), (uint16_t)x), high = vmull_high_n_u16(U16(a), (uint16_t)x);
    return U8(vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high)));
}
/* Entries of a table of 1 << bits 16-bit words, and one more, for the index in each 16-bit unit. */
V vb vb_lookup_16(const uint16_t *table, int bits, vb i)
{
    (void)bits;
    uint16_t index[8];
    vst1q_u16(index, U16(i));
    for (int j = 0; j < 8; j++)
        index[j] = table[index[j]];
    return U8(vld1q_u16(index));
}
/* `yes` in the bytes of which `test` has the one bit that `bit` has there, `no` in the others. */
V vb vb_choose(vb test, vb bit, vb yes, vb no) { return vbslq_u8(vtstq_u8(test, bit), yes, no); }
#ifdef __ARM_FEATURE_MATMUL_INT8
/* s + products of 2 x 8 signed bytes of w and of x: w0 x0, w0 x1, w1 x0, w1 x1. */
#define HAVE_PAIRS 1
V vi vi_dot_pairs(vi s, vb w, vb x) { return vmmlaq_s32(s, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(x)); }
/* Rows 0 to 3 of x`odd` from such sums of rows 0 and 1 and of rows 2 and 3. */
V vi vi_of_pairs(vi low, vi high, int odd) { return odd ? vuzp2q_s32(low, high) : vuzp1q_s32(low, high); }
/* The first and the last eight bytes of a and b side by side. */
V void vb_pair(vb a, vb b, uint8_t *first, uint8_t *last)
{
    uint64x2_t x = vreinterpretq_u64_u8(a), y = vreinterpretq_u64_u8(b);
    vst1q_u8(first, vreinterpretq_u8_u64(vzip1q_u64(x, y)));
    vst1q_u8(last, vreinterpretq_u8_u64(vzip2q_u64(x, y)));
}
/* Words of a and b by turns. */
V void vb_pair_words(vb a, vb b, vb *w)
{
    uint32x4_t x = vreinterpretq_u32_u8(a), y = vreinterpretq_u32_u8(b);
    w[0] = vreinterpretq_u8_u32(vzip1q_u32(x, y));
    w[1] = vreinterpretq_u8_u32(vzip2q_u32(x, y));
}
#endif
V vb vb_sub(vb a, vb b) { return vsubq_u8(a, b); }
/* Shifts of 16-bit units: bits cross from one byte to its neighbour, callers mask them off. */
V vb vb_shr(vb a, int n) { return U8(U16(a) >> vdupq_n_u16((uint16_t)n)); }
V vb vb_shl(vb a, int n) { return U8(U16(a) << vdupq_n_u16((uint16_t)n)); }

V vi vi_magnitude(vf x) { return vandq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(0x7fffffff)); }
V vi vi_max_u(vi a, vi b) { return S32(vmaxq_u32(U32(a), U32(b))); }
V uint32_t vi_reduce_max_u(vi x) { return vmaxvq_u32(U32(x)); }
V vi vi_from_float(vf x) { return vcvtnq_s32_f32(x); }
V int32_t vi_sum(vi x) { return vaddvq_s32(x); }
V void vi_store_i8(int8_t *p, vi x)
{
    int16x4_t s = vmovn_s32(x);
    uint32_t u = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(s, s))), 0);
    memcpy(p, &u, 4);
}
/* Of 64 numbers of 14 bits, in their order, the high seven bits and the low ones. */
V void vi_store_halves(uint8_t *high, uint8_t *low, const vi *x)
{
    _Pragma("GCC unroll 16") for (int i = 0; i < 64 / VL; i++) {
        vi_store_i8((int8_t *)high + i * VL, vi_shr(x[i], 7));
        vi_store_i8((int8_t *)low + i * VL, vi_and(x[i], vi_set1(127)));
    }
}
#undef U32
#undef S32
#undef U16
#undef U8
