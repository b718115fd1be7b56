/* Half and bfloat16 conversions in portable C: exact, round to nearest even, as the hardware instructions do it. And
 * the floats of one byte that are scales. */
#ifndef OX_SCALAR_HALF_H
#define OX_SCALAR_HALF_H
#include <stdint.h>
#include <string.h>

static inline float ox_bits_to_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t ox_float_to_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

static inline float ox_half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31)
        return ox_bits_to_float(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent == 0) /* zero or subnormal: mantissa * 2^-24 is exact */
        return ox_bits_to_float(sign | ox_float_to_bits((float)mantissa * 0x1p-24f));
    return ox_bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t ox_float_to_half(float f)
{
    uint32_t u = ox_float_to_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) /* NaN stays NaN, made quiet */
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) /* rounds beyond 65504 */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* subnormal half: adding 0.5 lets the float adder do the rounding, ulp(0.5) = 2^-24 */
        float rounded = ox_bits_to_float(a) + 0.5f;
        return (uint16_t)(sign | (ox_float_to_bits(rounded) - 0x3f000000));
    }
    uint32_t odd = a >> 13 & 1;
    return (uint16_t)(sign | (a - 0x38000000 + 0xfff + odd) >> 13);
}

static inline float ox_bf16_to_float(uint16_t b) { return ox_bits_to_float((uint32_t)b << 16); }

static inline uint16_t ox_float_to_bf16(float f)
{
    uint32_t u = ox_float_to_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* 2^(e - 128): half of what E8M0 stands for, since the codes are twice the values of E2M1. */
static inline float ox_e8m0_half(uint8_t e)
{
    return ox_bits_to_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* Half of an unsigned E4M3: the sign bit means nothing, and 0x7f is zero. */
static inline float ox_e4m3_half(uint8_t x)
{
    return x == 0x7f ? 0 : ox_bits_to_float((uint32_t)(x & 0x7f) << 20) * 0x1p119f;
}

#endif
