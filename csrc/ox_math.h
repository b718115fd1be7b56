/* Functions of one double, of additions, products and quotients alone, which every compiler and CPU rounds alike: those
 * of C libraries differ in their last bit. Good to a few units in the last place. */
#ifndef OX_MATH_H
#define OX_MATH_H
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline double ox_double_of(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
static inline uint64_t ox_bits_of(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }

/* exp(x) = 2^k exp(r) with |r| <= ln(2) / 2, by Taylor's series, whose next term is below 2e-16 of it. Zero below -708,
 * where normal doubles end. */
static inline double ox_exp_double(double x)
{
    if (x != x || x > 709.7)
        return x != x ? x : INFINITY;
    if (x < -708)
        return 0;
    double k = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0; /* the adder rounds */
    double r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10, sum = 1.0 / 479001600;
    sum = sum * r + 1.0 / 39916800;
    sum = sum * r + 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = 1 + (r + r * r * sum);
    int64_t half = (int64_t)k / 2; /* 2^1024 is no double */
    return sum * ox_double_of((uint64_t)(half + 1023) << 52) * ox_double_of((uint64_t)((int64_t)k - half + 1023) << 52);
}

/* log(2^k m) with m from sqrt(1/2) to sqrt(2): log(m) = 2 atanh(s), s = (m - 1) / (m + 1), by its series. */
static inline double ox_log_double(double x)
{
    if (!(x > 0) || x > 1.7976931348623157e308)
        return x == 0 ? -INFINITY : x > 0 ? x : NAN;
    int64_t k = 0;
    if (x < 2.2250738585072014e-308) {
        x *= 18014398509481984.0; /* 2^54 */
        k = -54;
    }
    uint64_t bits = ox_bits_of(x);
    k += (int64_t)(bits >> 52) - 1023;
    double m = ox_double_of((bits & 0xfffffffffffff) | 0x3ff0000000000000);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    double f = m - 1, s = f / (2 + f), z = s * s, sum = 1.0 / 23;
    for (int n = 21; n > 1; n -= 2)
        sum = sum * z + 1.0 / n;
    sum *= z; /* 2 s = f - s f */
    return (double)k * 0.6931471803691238 + (f - (s * f - 2 * s * sum - (double)k * 1.9082149292705877e-10));
}

/* x less n quarter turns, |x| below 2^31: of a quarter turn in three parts of 22 bits and a rest, products with n are
 * exact but for the last, and so are the first differences. */
static inline double ox_reduced(double x, double *n)
{
    *n = (x * 0.63661977236758138 + 6755399441055744.0) - 6755399441055744.0;
    double r = x - *n * 0x1.921fbp+0;
    r -= *n * 0x1.5110bp-22;
    r -= *n * 0x1.184698p-44;
    return r - *n * 0x1.3198a2e037073p-69;
}

/* Of |r| <= pi / 4, a little more: Taylor's series. */
static inline double ox_sine_of(double r)
{
    double z = r * r, sum = -1.0 / 1307674368000.0;
    sum = sum * z + 1.0 / 6227020800.0;
    sum = sum * z - 1.0 / 39916800;
    sum = sum * z + 1.0 / 362880;
    sum = sum * z - 1.0 / 5040;
    sum = sum * z + 1.0 / 120;
    sum = sum * z - 1.0 / 6;
    return r + r * z * sum;
}
static inline double ox_cosine_of(double r)
{
    double z = r * r, sum = 1.0 / 20922789888000.0;
    sum = sum * z - 1.0 / 87178291200.0;
    sum = sum * z + 1.0 / 479001600;
    sum = sum * z - 1.0 / 3628800;
    sum = sum * z + 1.0 / 40320;
    sum = sum * z - 1.0 / 720;
    sum = sum * z + 1.0 / 24;
    double half = 0.5 * z, rest = 1 - half;
    return rest + (((1 - rest) - half) + z * z * sum);
}

/* Cosine and sine of an angle. One beyond 2^31 is a remainder first, which is exact, of a turn that is not. */
static inline void ox_cos_sin(double x, double *cosine, double *sine)
{
    if (!(fabs(x) < 0x1p31))
        x = fmod(x, 6.2831853071795862);
    if (x != x) {
        *cosine = *sine = x;
        return;
    }
    double n, r = ox_reduced(x, &n), c = ox_cosine_of(r), s = ox_sine_of(r);
    int64_t quarter = (int64_t)n & 3;
    *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
    *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
}

/* By Lambert's continued fraction, good to a few units up to one; beyond by exp. */
static inline double ox_tanh_double(double x)
{
    if (x >= 1 || x <= -1) {
        double large = 1 - 2 / (ox_exp_double(2 * fabs(x)) + 1);
        return x > 0 ? large : -large;
    }
    double z = x * x, below = 23;
    for (int n = 21; n > 0; n -= 2)
        below = n + z / below;
    return x / below;
}

#endif
