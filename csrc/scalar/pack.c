/* Rows of a matrix to interleaved panels of 16 (layouts: ox_blocks.h). Missing rows of the last panel become zeros. */
#include "scalar.h"

void ox_pack_F32(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    float *dst = panel;
    memset(dst, 0, (size_t)k * 64);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < k; i++)
            memcpy(dst + i * 16 + r, (const uint8_t *)src + (size_t)r * stride + 4 * i, 4);
}

void ox_pack_F16(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    uint16_t *dst = panel;
    memset(dst, 0, (size_t)k * 32);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < k; i++)
            memcpy(dst + i * 16 + r, (const uint8_t *)src + (size_t)r * stride + 2 * i, 2);
}

/* Pairs of columns side by side, as bfloat16 dot products want them; an odd last column is paired with zeros. */
void ox_pack_BF16(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    uint16_t *dst = panel;
    memset(dst, 0, (size_t)((k + 1) / 2) * 64);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < k; i++)
            memcpy(dst + i / 2 * 32 + r * 2 + i % 2, (const uint8_t *)src + (size_t)r * stride + 2 * i, 2);
}

/* Where value l (0..31) of row r stands among the eight vectors of a chunk. */
static inline int vector_of(int l) { return l / 4; }
static inline int lane_of(int64_t r, int l) { return (int)r * 4 + l % 4; }

static inline void put_nibble(uint8_t qs[4][64], int64_t r, int l, int code)
{
    int v = vector_of(l);
    qs[v % 4][lane_of(r, l)] |= (uint8_t)(code << v / 4 * 4);
}

void ox_pack_Q4_0(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    for (int64_t b = 0; b < k / 32; b++) {
        ox_q4_0x16 *dst = (ox_q4_0x16 *)panel + b;
        memset(dst, 0, sizeof *dst);
        for (int64_t r = 0; r < n_rows; r++) {
            ox_q4_0 s;
            memcpy(&s, (const uint8_t *)src + (size_t)r * stride + (size_t)b * sizeof s, sizeof s);
            dst->d[r] = s.d;
            for (int l = 0; l < 32; l++)
                put_nibble(dst->qs, r, l, s.qs[l % 16] >> l / 16 * 4 & 15);
        }
    }
}

void ox_pack_Q8_0(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    for (int64_t b = 0; b < k / 32; b++) {
        ox_q8_0x16 *dst = (ox_q8_0x16 *)panel + b;
        memset(dst, 0, sizeof *dst);
        for (int64_t r = 0; r < n_rows; r++) {
            ox_q8_0 s;
            memcpy(&s, (const uint8_t *)src + (size_t)r * stride + (size_t)b * sizeof s, sizeof s);
            dst->d[r] = s.d;
            for (int l = 0; l < 32; l++)
                dst->qs[vector_of(l)][lane_of(r, l)] = (uint8_t)(s.qs[l] + 128);
        }
    }
}

void ox_pack_Q4_K(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    for (int64_t b = 0; b < k / 256; b++) {
        ox_q4_kx16 *dst = (ox_q4_kx16 *)panel + b;
        memset(dst, 0, sizeof *dst);
        for (int64_t r = 0; r < n_rows; r++) {
            ox_q4_k s;
            memcpy(&s, (const uint8_t *)src + (size_t)r * stride + (size_t)b * sizeof s, sizeof s);
            dst->d[r] = s.d;
            dst->dmin[r] = s.dmin;
            for (int c = 0; c < 8; c++) {
                ox_scale_min_k4(c, s.scales, &dst->scales[c][r], &dst->mins[c][r]);
                for (int l = 0; l < 32; l++)
                    put_nibble(dst->qs[c], r, l, s.qs[c / 2 * 32 + l] >> c % 2 * 4 & 15);
            }
        }
    }
}

void ox_pack_Q5_K(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    for (int64_t b = 0; b < k / 256; b++) {
        ox_q5_kx16 *dst = (ox_q5_kx16 *)panel + b;
        memset(dst, 0, sizeof *dst);
        for (int64_t r = 0; r < n_rows; r++) {
            ox_q5_k s;
            memcpy(&s, (const uint8_t *)src + (size_t)r * stride + (size_t)b * sizeof s, sizeof s);
            dst->d[r] = s.d;
            dst->dmin[r] = s.dmin;
            for (int c = 0; c < 8; c++) {
                ox_scale_min_k4(c, s.scales, &dst->scales[c][r], &dst->mins[c][r]);
                for (int l = 0; l < 32; l++) {
                    put_nibble(dst->qs[c], r, l, s.qs[c / 2 * 32 + l] >> c % 2 * 4 & 15);
                    dst->qh[c][lane_of(r, l)] |= (uint8_t)((s.qh[l] >> c & 1) << vector_of(l));
                }
            }
        }
    }
}

void ox_pack_Q6_K(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    for (int64_t b = 0; b < k / 256; b++) {
        ox_q6_kx16 *dst = (ox_q6_kx16 *)panel + b;
        memset(dst, 0, sizeof *dst);
        for (int64_t r = 0; r < n_rows; r++) {
            ox_q6_k s;
            memcpy(&s, (const uint8_t *)src + (size_t)r * stride + (size_t)b * sizeof s, sizeof s);
            dst->d[r] = s.d;
            for (int c = 0; c < 16; c++)
                dst->scales[c][r] = s.scales[c];
            for (int i = 0; i < 256; i++) {
                int half = i / 128, quarter = i % 128 / 32, c = i / 32, l = i % 32, v = vector_of(l);
                put_nibble(dst->qs[c], r, l, s.ql[64 * half + 32 * (quarter & 1) + l] >> (quarter >> 1) * 4 & 15);
                dst->qh[c][v % 2][lane_of(r, l)] |= (uint8_t)((s.qh[32 * half + l] >> 2 * quarter & 3) << v / 2 * 2);
            }
        }
    }
}
