/* Rows of a matrix to interleaved panels of 16 (layouts: ox_blocks.h). Missing rows of the last panel become zeros. */
#include "scalar.h"

void ox_pack_F32(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    float *dst = panel;
    memset(dst, 0, (size_t)k * 64);
    for (int64_t i = 0; i < k; i++)
        for (int64_t r = 0; r < n_rows; r++)
            memcpy(dst + i * 16 + r, (const uint8_t *)src + (size_t)r * stride + 4 * i, 4);
}

void ox_pack_F16(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    uint16_t *dst = panel;
    memset(dst, 0, (size_t)k * 32);
    for (int64_t i = 0; i < k; i++)
        for (int64_t r = 0; r < n_rows; r++)
            memcpy(dst + i * 16 + r, (const uint8_t *)src + (size_t)r * stride + 2 * i, 2);
}

/* Pairs of columns side by side, as bfloat16 dot products want them; an odd last column is paired with zeros. */
void ox_pack_BF16(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    uint16_t *dst = panel;
    memset(dst, 0, (size_t)((k + 1) / 2) * 64);
    for (int64_t i = 0; i < k; i++)
        for (int64_t r = 0; r < n_rows; r++)
            memcpy(dst + i / 2 * 32 + r * 2 + i % 2, (const uint8_t *)src + (size_t)r * stride + 2 * i, 2);
}

/* Four codes at a time: word v of a chunk's 32 codes is lane r of vector v. Masks are alike in every byte, so that the
 * order of bytes in a word doesn't matter. */
static inline uint32_t word(const void *p, int v) { uint32_t u; memcpy(&u, (const uint8_t *)p + 4 * v, 4); return u; }
static inline void put_word(uint8_t *vector, int64_t r, uint32_t u) { memcpy(vector + 4 * r, &u, 4); }
static inline void or_word(uint8_t *vector, int64_t r, uint32_t u) { put_word(vector, r, word(vector, (int)r) | u); }

#define LOW4 0x0f0f0f0fu
#define LOW2 0x03030303u
#define LOW1 0x01010101u

/* 32 nibbles that lie in 32 bytes, shifted by `shift`: vector i in the low and vector i + 4 in the high half of a
 * byte. */
static inline void put_nibbles(uint8_t qs[4][64], int64_t r, const uint8_t *bytes, int shift)
{
    for (int v = 0; v < 4; v++)
        put_word(qs[v], r, (word(bytes, v) >> shift & LOW4) | (word(bytes, v + 4) >> shift & LOW4) << 4);
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
            for (int v = 0; v < 4; v++) /* files pair nibbles 16 apart, too */
                put_word(dst->qs[v], r, word(s.qs, v));
        }
    }
}

void ox_pack_Q4_1(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    for (int64_t b = 0; b < k / 32; b++) {
        ox_q4_1x16 *dst = (ox_q4_1x16 *)panel + b;
        memset(dst, 0, sizeof *dst);
        for (int64_t r = 0; r < n_rows; r++) {
            ox_q4_1 s;
            memcpy(&s, (const uint8_t *)src + (size_t)r * stride + (size_t)b * sizeof s, sizeof s);
            dst->d[r] = s.d;
            dst->m[r] = s.m;
            for (int v = 0; v < 4; v++)
                put_word(dst->qs[v], r, word(s.qs, v));
        }
    }
}

/* The fifth bits of 32 codes: bit 4j + i of qh goes to bit j of lane byte i. */
static inline void put_fifth_bits(uint8_t *lanes, int64_t r, const uint8_t qh[4])
{
    for (int l = 0; l < 32; l++)
        lanes[4 * r + l % 4] |= (uint8_t)((qh[l / 8] >> l % 8 & 1) << l / 4);
}

void ox_pack_Q5_0(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    for (int64_t b = 0; b < k / 32; b++) {
        ox_q5_0x16 *dst = (ox_q5_0x16 *)panel + b;
        memset(dst, 0, sizeof *dst);
        for (int64_t r = 0; r < n_rows; r++) {
            ox_q5_0 s;
            memcpy(&s, (const uint8_t *)src + (size_t)r * stride + (size_t)b * sizeof s, sizeof s);
            dst->d[r] = s.d;
            put_fifth_bits(dst->qh, r, s.qh);
            for (int v = 0; v < 4; v++)
                put_word(dst->qs[v], r, word(s.qs, v));
        }
    }
}

void ox_pack_Q5_1(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    for (int64_t b = 0; b < k / 32; b++) {
        ox_q5_1x16 *dst = (ox_q5_1x16 *)panel + b;
        memset(dst, 0, sizeof *dst);
        for (int64_t r = 0; r < n_rows; r++) {
            ox_q5_1 s;
            memcpy(&s, (const uint8_t *)src + (size_t)r * stride + (size_t)b * sizeof s, sizeof s);
            dst->d[r] = s.d;
            dst->m[r] = s.m;
            put_fifth_bits(dst->qh, r, s.qh);
            for (int v = 0; v < 4; v++)
                put_word(dst->qs[v], r, word(s.qs, v));
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
            for (int v = 0; v < 8; v++)
                put_word(dst->qs[v], r, word(s.qs, v) ^ 0x80808080u);
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
                put_nibbles(dst->qs[c], r, s.qs + c / 2 * 32, c % 2 * 4);
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
                put_nibbles(dst->chunks[c].qs, r, s.qs + c / 2 * 32, c % 2 * 4);
                for (int v = 0; v < 8; v++)
                    or_word(dst->chunks[c].qh, r, (word(s.qh, v) >> c & LOW1) << v);
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
            for (int c = 0; c < 8; c++) {
                int half = c / 4, quarter = c % 4;
                dst->scales[2 * c][r] = s.scales[2 * c];
                dst->scales[2 * c + 1][r] = s.scales[2 * c + 1];
                put_nibbles(dst->chunks[c].qs, r, s.ql + 64 * half + 32 * (quarter & 1), (quarter >> 1) * 4);
                for (int v = 0; v < 8; v++)
                    or_word(dst->chunks[c].qh[v % 2], r,
                            (word(s.qh + 32 * half, v) >> 2 * quarter & LOW2) << v / 2 * 2);
            }
        }
    }
}
