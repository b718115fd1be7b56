/* The arithmetic that all tiers share, one value at a time: the fused multiply-add, the sum of sixteen lanes, and
 * functions of one variable. Each is the same operations in the same order as in generic/functions.h, which says why they
 * are those. */
#ifndef OX_SCALAR_FUNCTIONS_H
#define OX_SCALAR_FUNCTIONS_H
#include <math.h>
#include "half.h"

/* a * b + c, rounded once. Without an instruction for it: the product is exact in double, and the sum is rounded to odd
 * there, so that rounding it to float gives what rounding once would (Boldo and Melquiond, "Emulation of a FMA and
 * correctly rounded sums", 2008); C libraries do it, too, and some take a hundred times as long. */
static inline float ox_fma(float a, float b, float c)
{
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    double product = (double)a * b, sum = product + c, more = sum - product;
    double error = (product - (sum - more)) + (c - more);
    uint64_t bits;
    memcpy(&bits, &sum, 8);
    if (error != 0 && !(bits & 1) && sum - sum == 0)
        bits += (error > 0) == (sum > 0) ? 1 : (uint64_t)-1;
    memcpy(&sum, &bits, 8);
    return (float)sum;
#endif
}

/* The second where one is NaN, or both are zeros: what x86 means by a minimum and a maximum. */
static inline float ox_min(float a, float b) { return a < b ? a : b; }
static inline float ox_max(float a, float b) { return a > b ? a : b; }

/* The sum of a row whose value i was added to lane i % 16, in ascending order; lanes are overwritten. */
static inline float ox_sum_lanes(float lane[16])
{
    for (int n = 8; n > 0; n /= 2)
        for (int j = 0; j < n; j++)
            lane[j] += lane[j + n];
    return lane[0];
}

static inline float ox_exp(float x)
{
    if (x != x)
        return x;
    float bounded = ox_min(88.0f, ox_max(-87.3f, x)), n = rintf(bounded * 1.44269504f);
    float r = ox_fma(n, 2.12194440e-4f, ox_fma(-n, 0.693359375f, bounded));
    float p = ox_fma(r, 1.0f / 5040, 1.0f / 720);
    p = ox_fma(p, r, 1.0f / 120);
    p = ox_fma(p, r, 1.0f / 24);
    p = ox_fma(p, r, 1.0f / 6);
    p = ox_fma(p, r, 0.5f);
    p = ox_fma(p, r, 1.0f);
    p = ox_fma(p, r, 1.0f);
    return x < -87.3f ? 0 : ox_bits_to_float(ox_float_to_bits(p) + ((uint32_t)(int32_t)n << 23));
}

/* exp(x) - 1 for x <= 0. */
static inline float ox_expm1(float x)
{
    if (x < -0.5f)
        return ox_exp(x) - 1;
    float p = ox_fma(x, 1.0f / 40320, 1.0f / 5040);
    p = ox_fma(p, x, 1.0f / 720);
    p = ox_fma(p, x, 1.0f / 120);
    p = ox_fma(p, x, 1.0f / 24);
    p = ox_fma(p, x, 1.0f / 6);
    p = ox_fma(p, x, 0.5f);
    return ox_fma(p * x, x, x);
}

static inline float ox_tanh(float x)
{
    if (!(ox_max(0 - x, x) < 0.625f))
        return 1 - 2 / (ox_exp(ox_min(40, x + x)) + 1);
    float z = x * x, p = ox_fma(-5.70498872745e-3f, z, 2.06390887954e-2f);
    p = ox_fma(p, z, -5.37397155531e-2f);
    p = ox_fma(p, z, 1.33314422036e-1f);
    p = ox_fma(p, z, -3.33332819422e-1f);
    return ox_fma(p * z, x, x);
}

/* x / (1 + exp(-t)) */
static inline float ox_times_sigmoid(float x, float t)
{
    return x * (t < -88 ? 0.0f : 1.0f) / (1 + ox_exp(0 - t));
}

static inline float ox_silu_of(float x) { return ox_times_sigmoid(x, x); }

static inline float ox_gelu_of(float x)
{
    return ox_times_sigmoid(x, x * ox_fma(x * x, 0.0713548163f, 1.59576912f));
}

/* The normal distribution function. */
static inline float ox_normal(float x)
{
    float size = ox_min(20, ox_max(0 - x, x)), square = size * size;
    float d = ox_fma(-size, size, square), u = 1 / ox_fma(0.3f, size, 1);
    float p = ox_fma(-2.058472591e-2f, u, 1.122175085e-1f);
    p = ox_fma(p, u, -2.276804735e-1f);
    p = ox_fma(p, u, 1.910432868e-1f);
    p = ox_fma(p, u, -7.877875993e-2f);
    p = ox_fma(p, u, 9.579380547e-2f);
    p = ox_fma(p, u, 7.852168307e-2f);
    p = ox_fma(p, u, 1.102055806e-1f);
    p = ox_fma(p, u, 1.195756101e-1f);
    p = ox_fma(p, u, 1.196864832e-1f);
    float e = ox_exp(square * -0.5f), tail = ox_fma(e, d * 0.5f, e) * p * u;
    return tail + (x < 0 ? 0 : 1 - (tail + tail));
}

/* ln(1 + exp(x)) */
static inline float ox_softplus_of(float x)
{
    float e = ox_exp(0 - ox_max(0 - x, x)), s = e / (2 + e), s2 = s * s, p = 2.0f / 17;
    p = ox_fma(p, s2, 2.0f / 15);
    p = ox_fma(p, s2, 2.0f / 13);
    p = ox_fma(p, s2, 2.0f / 11);
    p = ox_fma(p, s2, 2.0f / 9);
    p = ox_fma(p, s2, 2.0f / 7);
    p = ox_fma(p, s2, 2.0f / 5);
    p = ox_fma(p, s2, 2.0f / 3);
    p = ox_fma(p, s2, 2.0f);
    return ox_fma(p, s, ox_max(0, x));
}

#endif
