/* Matrix products of packed panels, written for reading: the oracle of every other tier.
 *
 * All integer formats reduce to one form. For a chunk of 32 columns, weight row r is code[r][l] (unsigned) with
 *     w = scale * (code - offset) - min
 * so that the chunk's share of the product with activations x = d * q is
 *     d * scale * (sum(code q) - offset * sum(q)) - min * d * sum(q).
 * Q6_K has two scales in a chunk; they are small integers and are applied before the float scale. What is added to a
 * sum is multiplied and added in one rounding, chunks in ascending order. */
#include "functions.h"
#include "gemm.h"

typedef struct {
    uint8_t code[16][32];
    float scale[16], min[16];
    int32_t half_scale[2][16];
} chunk;
typedef void unpack_fn(const uint8_t *panel, int64_t i, chunk *c);

static int nibble(const uint8_t qs[4][64], int r, int l)
{
    int v = l / 4;
    return qs[v % 4][4 * r + l % 4] >> v / 4 * 4 & 15;
}

static void unpack_Q4_0(const uint8_t *panel, int64_t i, chunk *c)
{
    const ox_q4_0x16 *b = (const ox_q4_0x16 *)panel + i;
    for (int r = 0; r < 16; r++) {
        c->scale[r] = ox_half_to_float(b->d[r]);
        for (int l = 0; l < 32; l++)
            c->code[r][l] = (uint8_t)nibble(b->qs, r, l);
    }
}

static void unpack_Q4_1(const uint8_t *panel, int64_t i, chunk *c)
{
    const ox_q4_1x16 *b = (const ox_q4_1x16 *)panel + i;
    for (int r = 0; r < 16; r++) {
        c->scale[r] = ox_half_to_float(b->d[r]);
        c->min[r] = 0 - ox_half_to_float(b->m[r]);
        for (int l = 0; l < 32; l++)
            c->code[r][l] = (uint8_t)nibble(b->qs, r, l);
    }
}

static void unpack_Q5_0(const uint8_t *panel, int64_t i, chunk *c)
{
    const ox_q5_0x16 *b = (const ox_q5_0x16 *)panel + i;
    for (int r = 0; r < 16; r++) {
        c->scale[r] = ox_half_to_float(b->d[r]);
        for (int l = 0; l < 32; l++)
            c->code[r][l] = (uint8_t)(nibble(b->qs, r, l) | (b->qh[4 * r + l % 4] >> l / 4 & 1) << 4);
    }
}

static void unpack_Q5_1(const uint8_t *panel, int64_t i, chunk *c)
{
    const ox_q5_1x16 *b = (const ox_q5_1x16 *)panel + i;
    for (int r = 0; r < 16; r++) {
        c->scale[r] = ox_half_to_float(b->d[r]);
        c->min[r] = 0 - ox_half_to_float(b->m[r]);
        for (int l = 0; l < 32; l++)
            c->code[r][l] = (uint8_t)(nibble(b->qs, r, l) | (b->qh[4 * r + l % 4] >> l / 4 & 1) << 4);
    }
}

static void unpack_Q8_0(const uint8_t *panel, int64_t i, chunk *c)
{
    const ox_q8_0x16 *b = (const ox_q8_0x16 *)panel + i;
    for (int r = 0; r < 16; r++) {
        c->scale[r] = ox_half_to_float(b->d[r]);
        for (int l = 0; l < 32; l++)
            c->code[r][l] = b->qs[l / 4][4 * r + l % 4];
    }
}

static void unpack_Q4_K(const uint8_t *panel, int64_t i, chunk *c)
{
    const ox_q4_kx16 *b = (const ox_q4_kx16 *)panel + i / 8;
    for (int r = 0, s = (int)(i % 8); r < 16; r++) {
        c->scale[r] = ox_half_to_float(b->d[r]) * b->scales[s][r];
        c->min[r] = ox_half_to_float(b->dmin[r]) * b->mins[s][r];
        for (int l = 0; l < 32; l++)
            c->code[r][l] = (uint8_t)nibble(b->qs[s], r, l);
    }
}

static void unpack_Q5_K(const uint8_t *panel, int64_t i, chunk *c)
{
    const ox_q5_kx16 *b = (const ox_q5_kx16 *)panel + i / 8;
    for (int r = 0, s = (int)(i % 8); r < 16; r++) {
        c->scale[r] = ox_half_to_float(b->d[r]) * b->scales[s][r];
        c->min[r] = ox_half_to_float(b->dmin[r]) * b->mins[s][r];
        for (int l = 0; l < 32; l++) {
            int high = b->chunks[s].qh[4 * r + l % 4] >> l / 4 & 1;
            c->code[r][l] = (uint8_t)(nibble(b->chunks[s].qs, r, l) | high << 4);
        }
    }
}

static void unpack_Q6_K(const uint8_t *panel, int64_t i, chunk *c)
{
    const ox_q6_kx16 *b = (const ox_q6_kx16 *)panel + i / 8;
    for (int r = 0, s = (int)(i % 8); r < 16; r++) {
        c->scale[r] = ox_half_to_float(b->d[r]);
        c->half_scale[0][r] = b->scales[2 * s][r];
        c->half_scale[1][r] = b->scales[2 * s + 1][r];
        for (int l = 0; l < 32; l++) {
            int v = l / 4, high = b->chunks[s].qh[v % 2][4 * r + l % 4] >> v / 2 * 2 & 3;
            c->code[r][l] = (uint8_t)(nibble(b->chunks[s].qs, r, l) | high << 4);
        }
    }
}

static int32_t dot(const uint8_t *code, const int8_t *q, int n)
{
    int32_t s = 0;
    for (int l = 0; l < n; l++)
        s += code[l] * q[l];
    return s;
}

enum kind { OFFSET, MINS, HALVES };

static void add_chunk(enum kind kind, const chunk *c, const q8_row *x, int64_t i, int offset, float *acc)
{
    for (int r = 0; r < 16; r++) {
        const int8_t *q = x->q + 32 * i;
        if (kind == HALVES) {
            int32_t s0 = dot(c->code[r], q, 16) + offset * x->n0[i];
            int32_t s1 = dot(c->code[r] + 16, q + 16, 16) + offset * x->n1[i];
            int32_t s = s0 * c->half_scale[0][r] + s1 * c->half_scale[1][r];
            acc[r] = ox_fma((float)s, c->scale[r] * x->d[i], acc[r]);
        } else {
            int32_t s = dot(c->code[r], q, 32) + offset * x->n[i];
            acc[r] = ox_fma((float)s, c->scale[r] * x->d[i], acc[r]);
            if (kind == MINS)
                acc[r] = ox_fma(-c->min[r], x->ds[i], acc[r]);
        }
    }
}

static void gemm_q8(const ox_gemm_args *a, unpack_fn *unpack, enum kind kind, int offset)
{
    for (int64_t t0 = 0; t0 < a->n_tokens; t0 += TOKENS)
        for (int64_t row = 0; row < a->n_rows; row += 16) {
            int64_t nt = a->n_tokens - t0 < TOKENS ? a->n_tokens - t0 : TOKENS;
            float acc[TOKENS][16] = {{0}};
            q8_row x[TOKENS];
            for (int64_t t = 0; t < nt; t++)
                x[t] = row_of(a, t0 + t);
            for (int64_t i = 0; i < a->k / 32; i++) {
                chunk c;
                unpack((const uint8_t *)a->w + (size_t)(row / 16) * a->panel_bytes, i, &c);
                for (int64_t t = 0; t < nt; t++)
                    add_chunk(kind, &c, &x[t], i, offset, acc[t]);
            }
            for (int64_t t = 0; t < nt; t++)
                store(a, t0 + t, row, acc[t]);
        }
}

void ox_gemm_Q4_0(const ox_gemm_args *a) { gemm_q8(a, unpack_Q4_0, OFFSET, 8); }
void ox_gemm_Q4_1(const ox_gemm_args *a) { gemm_q8(a, unpack_Q4_1, MINS, 0); }
void ox_gemm_Q5_0(const ox_gemm_args *a) { gemm_q8(a, unpack_Q5_0, OFFSET, 16); }
void ox_gemm_Q5_1(const ox_gemm_args *a) { gemm_q8(a, unpack_Q5_1, MINS, 0); }
void ox_gemm_Q8_0(const ox_gemm_args *a) { gemm_q8(a, unpack_Q8_0, OFFSET, 128); }
void ox_gemm_Q4_K(const ox_gemm_args *a) { gemm_q8(a, unpack_Q4_K, MINS, 0); }
void ox_gemm_Q5_K(const ox_gemm_args *a) { gemm_q8(a, unpack_Q5_K, MINS, 0); }
void ox_gemm_Q6_K(const ox_gemm_args *a) { gemm_q8(a, unpack_Q6_K, HALVES, 32); }

typedef float load_fn(const void *panel, int64_t i, int r);
static float load_F32(const void *panel, int64_t i, int r) { return ((const float *)panel)[16 * i + r]; }
static float load_F16(const void *panel, int64_t i, int r)
{
    return ox_half_to_float(((const uint16_t *)panel)[16 * i + r]);
}
static float load_BF16(const void *panel, int64_t i, int r)
{
    return ox_bf16_to_float(((const uint16_t *)panel)[i / 2 * 32 + 2 * r + i % 2]);
}

static void gemm_float(const ox_gemm_args *a, load_fn *load)
{
    for (int64_t t = 0; t < a->n_tokens; t++)
        for (int64_t row = 0; row < a->n_rows; row += 16) {
            const uint8_t *panel = (const uint8_t *)a->w + (size_t)(row / 16) * a->panel_bytes;
            const float *x = (const float *)((const uint8_t *)a->x
                                             + (size_t)(a->x_rows ? a->x_rows[t] : t) * a->x_bytes);
            float acc[16] = {0};
            for (int64_t i = 0; i < a->k; i++)
                for (int r = 0; r < 16; r++)
                    acc[r] = ox_fma(load(panel, i, r), x[i], acc[r]);
            store(a, t, row, acc);
        }
}

void ox_gemm_F32(const ox_gemm_args *a) { gemm_float(a, load_F32); }
void ox_gemm_F16(const ox_gemm_args *a) { gemm_float(a, load_F16); }
void ox_gemm_BF16(const ox_gemm_args *a) { gemm_float(a, load_BF16); }
