/* Floats to tensor formats, and to the activation rows of the integer kernels. */
#include <math.h>
#include "scalar.h"

void ox_quantise_F32(const float *x, void *dst, int64_t n) { memcpy(dst, x, (size_t)n * 4); }

void ox_to_f16(const float *x, uint16_t *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = ox_float_to_half(x[i]);
}

void ox_quantise_F16(const float *x, void *dst, int64_t n) { ox_to_f16(x, dst, n); }

void ox_quantise_BF16(const float *x, void *dst, int64_t n)
{
    uint16_t *y = dst;
    for (int64_t i = 0; i < n; i++)
        y[i] = ox_float_to_bf16(x[i]);
}

/* Largest magnitude as bits: integers order as the floats do, and NaN stands above infinity instead of vanishing. */
static uint32_t max_magnitude_bits(const float *x)
{
    uint32_t max = 0;
    for (int j = 0; j < 32; j++) {
        uint32_t u = ox_float_to_bits(x[j]) & 0x7fffffff;
        max = u > max ? u : max;
    }
    return max;
}

/* The codes are those of the rounded scale, which may be so much smaller that they must be kept within 127. */
void ox_quantise_Q8_0(const float *x, void *dst, int64_t n)
{
    uint8_t *out = dst;
    for (int64_t i = 0; i < n; i += 32, out += sizeof(ox_q8_0)) {
        ox_q8_0 b;
        b.d = ox_float_to_half(ox_bits_to_float(max_magnitude_bits(x + i)) / 127);
        float d = ox_half_to_float(b.d), inverse = d > 0 ? 1 / d : 0;
        for (int j = 0; j < 32; j++) {
            float v = x[i + j] * inverse;
            v = v > 127 ? 127 : v;
            v = v > -127 ? v : -127;
            b.qs[j] = (int8_t)(int)((v + 0x1.8p23f) - 0x1.8p23f); /* the adder rounds */
        }
        memcpy(out, &b, sizeof b);
    }
}

void ox_quantise_q8(const float *x, void *row, int64_t k, int64_t first, int64_t n)
{
    int64_t nb = k / 32;
    int8_t *q = (int8_t *)row + first;
    float *d = (float *)((int8_t *)row + k), *ds = d + nb;
    int32_t *sum = (int32_t *)(ds + nb), *sum0 = sum + nb, *sum1 = sum0 + nb;
    for (int64_t b = first / 32; b < (first + n) / 32; b++, x += 32, q += 32) {
        uint32_t bits = max_magnitude_bits(x);
        float max = ox_bits_to_float(bits), inverse = bits < 0x03000000 || bits >= 0x7f800000 ? 0 : 127 / max;
        int32_t s[2] = {0, 0};
        for (int j = 0; j < 32; j++) {
            q[j] = inverse != 0 ? (int8_t)rintf(x[j] * inverse) : 0; /* below 2^-121 the inverse would overflow */
            s[j / 16] += q[j];
        }
        d[b] = bits >= 0x7f800000 ? NAN : inverse != 0 ? max * (1.0f / 127) : 0;
        ds[b] = d[b] * (float)(s[0] + s[1]);
        sum[b] = -(s[0] + s[1]);
        sum0[b] = -s[0];
        sum1[b] = -s[1];
    }
}
