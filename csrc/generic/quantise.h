/* Activations to rows of 8-bit codes, and floats to halves. The codes equal the scalar tier's bit for bit. */
#include "../scalar/half.h"

/* Largest magnitude as bits: integers order as the floats do, and NaN stands above infinity instead of vanishing. */
INLINE uint32_t max_magnitude_bits(const float *x)
{
    vi max = vi_zero();
    UNROLL for (int j = 0; j < OX_CHUNK; j += VL)
        max = vi_max_u(max, vi_magnitude(vf_load(x + j)));
    return vi_reduce_max_u(max);
}

static void quantise_q8(const float *x, void *row, int64_t k, int64_t first, int64_t n)
{
    int64_t nb = k / OX_CHUNK;
    int8_t *q = (int8_t *)row + first;
    float *d = (float *)((int8_t *)row + k), *ds = d + nb;
    int32_t *sum = (int32_t *)(ds + nb), *sum0 = sum + nb, *sum1 = sum0 + nb;
    for (int64_t b = first / OX_CHUNK; b < (first + n) / OX_CHUNK; b++, x += OX_CHUNK, q += OX_CHUNK) {
        union { uint32_t u; float f; } max = {max_magnitude_bits(x)};
        float inverse = max.u < 0x03000000 || max.u >= 0x7f800000 ? 0 : 127 / max.f;
        int32_t s[2] = {0, 0};
        UNROLL for (int j = 0; j < OX_CHUNK; j += VL) {
            vi code = vi_from_float(vf_mul(vf_load(x + j), vf_set1(inverse)));
            code = inverse != 0 ? code : vi_zero();
            s[j / 16] += vi_sum(code);
            vi_store_i8(q + j, code);
        }
        d[b] = max.u >= 0x7f800000 ? NAN : inverse != 0 ? max.f * (1.0f / 127) : 0;
        ds[b] = d[b] * (float)(s[0] + s[1]);
        sum[b] = -(s[0] + s[1]);
        sum0[b] = -s[0];
        sum1[b] = -s[1];
    }
}

static void to_f16(const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_to_half(y + i, vf_load(x + i));
    if (i < n) {
        uint16_t part[VL];
        vf_to_half(part, load_tail(x + i, n - i, 0));
        for (int64_t r = 0; i + r < n; r++)
            y[i + r] = part[r];
    }
}

static void dequantise_f16(const void *src, float *dst, int64_t n)
{
    const uint16_t *x = src;
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(dst + i, vf_from_half(x + i));
    for (; i < n; i++) {
        uint16_t h;
        memcpy(&h, x + i, 2);
        dst[i] = ox_half_to_float(h);
    }
}
