/* Quantisers of the formats whose blocks have scales of their own: one half, two, or a few bits. */
#include "fit.h"

INLINE lf code_q4(lf v) { return nearest(clamp(v, -8, 7)); }
INLINE lf code_q5(lf v) { return nearest(clamp(v, -16, 15)); }
INLINE lf code_trit(lf v) { return nearest(clamp(v, -1, 1)); }
INLINE lf code_q2(lf v) { return nearest(clamp(v, -1, 2)); }
INLINE lf code_sign(lf v) { return pick(v < 0, lf_set1(-1), lf_set1(1)); }

/* Where v lies beyond `bound`, add `step`. */
INLINE lf step(lf v, float bound, float size) { return pick(v > bound, lf_set1(size), (lf){0}); }

/* The nearest of ox_codes_iq4, and its index. */
INLINE lf code_iq4(lf v)
{
    lf q = lf_set1(ox_codes_iq4[0]);
    for (int i = 1; i < 16; i++)
        q += step(v, 0.5f * (float)(ox_codes_iq4[i - 1] + ox_codes_iq4[i]),
                  (float)(ox_codes_iq4[i] - ox_codes_iq4[i - 1]));
    return q;
}
INLINE lf index_iq4(lf v)
{
    lf index = {0};
    for (int i = 1; i < 16; i++)
        index += step(v, 0.5f * (float)(ox_codes_iq4[i - 1] + ox_codes_iq4[i]), 1);
    return index;
}

/* The nearest of ox_codes_fp4, and its index: eight magnitudes, then the same with a minus. */
INLINE lf code_fp4(lf v)
{
    lf q = {0};
    for (int i = 1; i < 8; i++)
        q += step(lf_abs(v), 0.5f * (float)(ox_codes_fp4[i - 1] + ox_codes_fp4[i]),
                  (float)(ox_codes_fp4[i] - ox_codes_fp4[i - 1]));
    return pick(v < 0, -q, q);
}
INLINE lf index_fp4(lf v)
{
    lf index = {0};
    for (int i = 1; i < 8; i++)
        index += step(lf_abs(v), 0.5f * (float)(ox_codes_fp4[i - 1] + ox_codes_fp4[i]), 1);
    return pick(v < 0, index + 8.0f, index);
}

/* Two codes of four bits in a byte: 16 apart. */
INLINE void pack_nibbles(uint8_t *qs, const uint8_t *q)
{
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
}
INLINE void pack_fifth_bits(uint8_t *qh, const uint8_t *q)
{
    memset(qh, 0, 4);
    for (int j = 0; j < 32; j++)
        qh[j / 8] |= (uint8_t)((q[j] >> 4) << j % 8);
}

/* A quantiser by name: FIT for LANES blocks, giving halves d and m and the codes q; then PACK for each lane l into
 * b. */
#define QUANTISER(name, type, size, FIT, PACK)                                  \
    static void quantise_##name(const float *x, void *dst, int64_t n)           \
    {                                                                           \
        uint8_t *out = dst;                                                     \
        for (int64_t i = 0; i < n; i += (size) * LANES) {                       \
            int count = n - i < (size) * LANES ? (int)((n - i) / (size)) : LANES; \
            blocks v;                                                           \
            codes q;                                                            \
            halves d, m;                                                        \
            load_blocks(&v, x + i, count, size);                                \
            FIT;                                                                \
            for (int l = 0; l < count; l++, out += sizeof(type)) {              \
                type b;                                                         \
                (void)m;                                                        \
                PACK;                                                           \
                memcpy(out, &b, sizeof b);                                      \
            }                                                                   \
        }                                                                       \
    }
#define LENGTH(a) (int)(sizeof(a) / sizeof *(a))

/* Blocks of one scale; codes are stored less the lowest, or as what index() says. */
#define FIT_HALF(size, code, grid)                                              \
    lf plain, fitted = fit_scale(v.x, size, code, grid, LENGTH(grid), &plain);   \
    lf scale = fit_half(&v, size, code, fitted, plain, d)
#define FIT_CODES(size, code, lowest, grid) \
    FIT_HALF(size, code, grid); store_codes(v.x, size, code, scale, lowest, 0, q)
#define FIT_INDEX(size, code, index, grid) FIT_HALF(size, code, grid); store_codes(v.x, size, index, scale, 0, 0, q)

static const float grid_q4[] = {-8, -9, -8.5f, -7.5f, -7, -6.5f, -6, 7, 7.5f, 6.5f};
static const float grid_q5[] = {-16, -17, -16.5f, -15.5f, -15, 15, 15.5f, 14.5f};
static const float grid_trit[] = {1, 1.4f, 1.9f, 2.5f, 3.5f};
static const float grid_q2[] = {2, 2.5f, 1.6f, 3.2f, -1, -1.4f, -2};
static const float grid_sign[] = {1};
static const float grid_iq4[] = {-127, -135, -120, -110, -103, 113, 120, 105, 97, 89};

QUANTISER(Q4_0, ox_q4_0, 32, FIT_CODES(32, code_q4, -8, grid_q4), b.d = d[l]; pack_nibbles(b.qs, q[l]))
QUANTISER(Q5_0, ox_q5_0, 32, FIT_CODES(32, code_q5, -16, grid_q5),
          b.d = d[l]; pack_nibbles(b.qs, q[l]); pack_fifth_bits(b.qh, q[l]))
QUANTISER(IQ4_NL, ox_iq4_nl, 32, FIT_INDEX(32, code_iq4, index_iq4, grid_iq4), b.d = d[l]; pack_nibbles(b.qs, q[l]))

/* The low two bits of four codes in each byte, `stride` values apart, in groups of four strides. */
INLINE void pack_pairs(uint8_t *qs, const uint8_t *q, int n, int stride)
{
    memset(qs, 0, (size_t)n / 4);
    for (int j = 0; j < n; j++)
        qs[j / (4 * stride) * stride + j % stride] |= (uint8_t)((q[j] & 3) << 2 * (j / stride % 4));
}
QUANTISER(Q2_0, ox_q2_0, 64, FIT_CODES(64, code_q2, -1, grid_q2), b.d = d[l]; pack_pairs(b.qs, q[l], 64, 1))
QUANTISER(TQ2_0, ox_tq2_0, 256, FIT_CODES(256, code_trit, -1, grid_trit), b.d = d[l]; pack_pairs(b.qs, q[l], 256, 32))

INLINE void pack_bits(uint8_t *qs, const uint8_t *q)
{
    memset(qs, 0, 16);
    for (int j = 0; j < 128; j++)
        qs[j / 8] |= (uint8_t)((q[j] != 0) << j % 8);
}
QUANTISER(Q1_0, ox_q1_0, 128, FIT_CODES(128, code_sign, -1, grid_sign), b.d = d[l]; pack_bits(b.qs, q[l]))

/* `digits` digits in base 3 to a byte, `stride` values apart, the first the highest of five; as a fraction of 256. */
INLINE void pack_trits(uint8_t *qs, const uint8_t *q, int stride, int digits)
{
    for (int j = 0; j < stride; j++) {
        int number = 0;
        for (int k = 0; k < 5; k++)
            number = 3 * number + (k < digits ? q[k * stride + j] : 0);
        qs[j] = (uint8_t)((number * 256 + 242) / 243);
    }
}
QUANTISER(TQ1_0, ox_tq1_0, 256, FIT_CODES(256, code_trit, -1, grid_trit), b.d = d[l]; pack_trits(b.qs, q[l], 32, 5);
          pack_trits(b.qs + 32, q[l] + 160, 16, 5); pack_trits(b.qh, q[l] + 240, 4, 4))

/* Two halves: x = d q + m. d is rounded first, or to a neighbour; then m is fitted to what that d gives. */
static void fit_halves(const blocks *v, float top, line_grid grid, halves d, halves m, codes q)
{
    lf low = v->x[0], x[32], least = {0};
    for (int j = 1; j < 32; j++)
        low = lf_min(v->x[j], low);
    for (int j = 0; j < 32; j++)
        x[j] = v->x[j] - low;
    line_fit line = fit_line(x, 32, top, lf_set1(INFINITY), grid);
    halves first;
    to_halves(line.d * v->up, first);
    for (int k = 0; k < 3; k++) {
        halves hd, hm;
        neighbours(first, k == 2 ? -1 : k, hd);
        lf scale = lf_half(hd) * v->down, inv = inverse(scale), left = {0}, error = {0};
        for (int j = 0; j < 32; j++)
            left += x[j] - scale * nearest(clamp((x[j] - line.o) * inv, 0, top));
        to_halves((left * (1.0f / 32) + low) * v->up, hm);
        lf min = lf_half(hm) * v->down;
        for (int j = 0; j < 32; j++) {
            lf e = v->x[j] - (scale * nearest(clamp((v->x[j] - min) * inv, 0, top)) + min);
            error += e * e;
        }
        li better = k ? error < least : least == least;
        pick_halves(better, hd, d);
        pick_halves(better, hm, m);
        least = pick(better, error, least);
    }
    lf scale = lf_half(d) * v->down, inv = inverse(scale), min = lf_half(m) * v->down;
    for (int j = 0; j < 32; j++) {
        lf code = nearest(clamp((v->x[j] - min) * inv, 0, top));
        for (int l = 0; l < LANES; l++)
            q[l][j] = (uint8_t)code[l];
    }
}
static const line_grid grid_q4_1 = {14, 0.25f, 15}, grid_q5_1 = {29.5f, 0.25f, 15};

QUANTISER(Q4_1, ox_q4_1, 32, fit_halves(&v, 15, grid_q4_1, d, m, q),
          b.d = d[l]; b.m = m[l]; pack_nibbles(b.qs, q[l]))
QUANTISER(Q5_1, ox_q5_1, 32, fit_halves(&v, 31, grid_q5_1, d, m, q),
          b.d = d[l]; b.m = m[l]; pack_nibbles(b.qs, q[l]); pack_fifth_bits(b.qh, q[l]))
