/* One row of each format to floats, bit for bit as ggml defines them. */
#include "scalar.h"

void ox_dequantise_F32(const void *src, float *dst, int64_t n) { memcpy(dst, src, (size_t)n * 4); }

void ox_dequantise_F16(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const uint8_t *)src + 2 * i, 2);
        dst[i] = ox_half_to_float(h);
    }
}

void ox_dequantise_BF16(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const uint8_t *)src + 2 * i, 2);
        dst[i] = ox_bf16_to_float(h);
    }
}

void ox_dequantise_Q4_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i += 32, p += sizeof(ox_q4_0)) {
        ox_q4_0 b;
        memcpy(&b, p, sizeof b);
        float d = ox_half_to_float(b.d);
        for (int j = 0; j < 16; j++) {
            dst[i + j] = (float)((b.qs[j] & 15) - 8) * d;
            dst[i + j + 16] = (float)((b.qs[j] >> 4) - 8) * d;
        }
    }
}

void ox_dequantise_Q4_1(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i += 32, p += sizeof(ox_q4_1)) {
        ox_q4_1 b;
        memcpy(&b, p, sizeof b);
        float d = ox_half_to_float(b.d), m = ox_half_to_float(b.m);
        for (int j = 0; j < 32; j++)
            dst[i + j] = (float)(b.qs[j % 16] >> j / 16 * 4 & 15) * d + m;
    }
}

/* Code j of a five-bit block: four bits in a nibble, the fifth in qh. */
static int code5(const uint8_t *qs, const uint8_t *qh, int j)
{
    return (qs[j % 16] >> j / 16 * 4 & 15) | (qh[j / 8] >> j % 8 & 1) << 4;
}

void ox_dequantise_Q5_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i += 32, p += sizeof(ox_q5_0)) {
        ox_q5_0 b;
        memcpy(&b, p, sizeof b);
        float d = ox_half_to_float(b.d);
        for (int j = 0; j < 32; j++)
            dst[i + j] = (float)(code5(b.qs, b.qh, j) - 16) * d;
    }
}

void ox_dequantise_Q5_1(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i += 32, p += sizeof(ox_q5_1)) {
        ox_q5_1 b;
        memcpy(&b, p, sizeof b);
        float d = ox_half_to_float(b.d), m = ox_half_to_float(b.m);
        for (int j = 0; j < 32; j++)
            dst[i + j] = (float)code5(b.qs, b.qh, j) * d + m;
    }
}

void ox_dequantise_Q8_0(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i += 32, p += sizeof(ox_q8_0)) {
        ox_q8_0 b;
        memcpy(&b, p, sizeof b);
        float d = ox_half_to_float(b.d);
        for (int j = 0; j < 32; j++)
            dst[i + j] = (float)b.qs[j] * d;
    }
}

void ox_dequantise_Q4_K(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i += 256, p += sizeof(ox_q4_k)) {
        ox_q4_k b;
        memcpy(&b, p, sizeof b);
        float d = ox_half_to_float(b.d), dmin = ox_half_to_float(b.dmin);
        for (int c = 0; c < 8; c++) {
            uint8_t scale, min;
            ox_scale_min_k4(c, b.scales, &scale, &min);
            float dl = d * scale, ml = dmin * min;
            for (int j = 0; j < 32; j++)
                dst[i + 32 * c + j] = dl * (float)(b.qs[c / 2 * 32 + j] >> (c % 2 * 4) & 15) - ml;
        }
    }
}

void ox_dequantise_Q5_K(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i += 256, p += sizeof(ox_q5_k)) {
        ox_q5_k b;
        memcpy(&b, p, sizeof b);
        float d = ox_half_to_float(b.d), dmin = ox_half_to_float(b.dmin);
        for (int c = 0; c < 8; c++) {
            uint8_t scale, min;
            ox_scale_min_k4(c, b.scales, &scale, &min);
            float dl = d * scale, ml = dmin * min;
            for (int j = 0; j < 32; j++) {
                int q = (b.qs[c / 2 * 32 + j] >> (c % 2 * 4) & 15) | (b.qh[j] >> c & 1) << 4;
                dst[i + 32 * c + j] = dl * (float)q - ml;
            }
        }
    }
}

void ox_dequantise_Q6_K(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i += 256, p += sizeof(ox_q6_k)) {
        ox_q6_k b;
        memcpy(&b, p, sizeof b);
        float d = ox_half_to_float(b.d);
        for (int j = 0; j < 256; j++) {
            int half = j / 128, quarter = j % 128 / 32, l = j % 32;
            int low = b.ql[64 * half + 32 * (quarter & 1) + l] >> (quarter >> 1) * 4 & 15;
            int high = b.qh[32 * half + l] >> 2 * quarter & 3;
            dst[i + j] = d * (float)b.scales[j / 16] * (float)((low | high << 4) - 32);
        }
    }
}
