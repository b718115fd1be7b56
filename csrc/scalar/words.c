/* Formats whose packed form interleaves the words of 16 rows' blocks and changes no bit (ox_blocks.h).
 *
 * One description of a format serves it all: dequantising, packing, and a matrix product that takes a row's block out
 * of the panel again and decodes it. Slow and obvious, as an oracle should be. */
#include "words.h"
#include "functions.h"
#include "gemm.h"

/* What the scales of a chunk are: one, two of halves, or whole multiples of one, without and with minima. */
enum scales { ONE, HALVES, MULTIPLES, AND_MINIMA };
/* A block is a head of `units` fields of `unit` bytes at `head_at` (its start or its end), and words. */
typedef struct { int values; size_t bytes, head_at, unit, units; ox_decode_fn *decode; enum scales scales; } layout;

typedef union { uint8_t bytes[292]; float align; } any_block;

static void dequantise(const layout *f, const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i += f->values, src += f->bytes) {
        any_block b;
        memcpy(&b, src, f->bytes);
        for (int c = 0; c < f->values / 32; c++) {
            ox_values v = {0};
            f->decode(&b, c, &v);
            for (int l = 0; l < 32; l++)
                *dst++ = v.scale[l / 16] * (float)v.code[l] - v.min[l / 16];
        }
    }
}

/* Copy field by field between a block and lane r of a packed block: to it, or from it. */
static void move(const layout *f, uint8_t *packed, size_t r, uint8_t *block, int to_packed)
{
    size_t head = f->unit * f->units, words_at = f->head_at ? 0 : head;
    for (size_t u = 0; u < f->units; u++) {
        uint8_t *p = packed + (u * 16 + r) * f->unit, *b = block + f->head_at + u * f->unit;
        memcpy(to_packed ? p : b, to_packed ? b : p, f->unit);
    }
    for (size_t w = 0; w < (f->bytes - head) / 4; w++) {
        uint8_t *p = packed + 16 * head + (w * 16 + r) * 4, *b = block + words_at + 4 * w;
        memcpy(to_packed ? p : b, to_packed ? b : p, 4);
    }
}

static void pack(const layout *f, const uint8_t *src, size_t stride, int64_t n_rows, int64_t k, uint8_t *panel)
{
    size_t blocks = (size_t)(k / f->values);
    memset(panel, 0, blocks * 16 * f->bytes);
    for (size_t i = 0; i < blocks; i++)
        for (size_t r = 0; r < (size_t)n_rows; r++) {
            any_block b;
            memcpy(&b, src + r * stride + i * f->bytes, f->bytes);
            move(f, panel + i * 16 * f->bytes, r, b.bytes, 1);
        }
}

static int32_t dot16(const int8_t *code, const int8_t *q)
{
    int32_t s = 0;
    for (int l = 0; l < 16; l++)
        s += code[l] * q[l];
    return s;
}

/* Whole numbers are summed first; then each share is multiplied and added in one rounding. */
static float with_chunk(float acc, enum scales scales, const ox_values *v, const q8_row *x, int64_t i)
{
    float d = x->d[i];
    int32_t first = dot16(v->code, x->q + 32 * i), second = dot16(v->code + 16, x->q + 32 * i + 16);
    if (scales == ONE)
        return ox_fma((float)(first + second), v->scale[0] * d, acc);
    if (scales == HALVES)
        return ox_fma((float)second, v->scale[1] * d, ox_fma((float)first, v->scale[0] * d, acc));
    acc = ox_fma((float)(first * v->s[0] + second * v->s[1]), v->d * d, acc);
    return scales == MULTIPLES ? acc : ox_fma((float)(x->n0[i] * v->m[0] + x->n1[i] * v->m[1]), v->dmin * d, acc);
}

/* acc[t][r] += block i of row r times the activations of token t */
static void add_block(const layout *f, const uint8_t *packed, int64_t i, const q8_row *x, int64_t nt, float acc[][16])
{
    for (size_t r = 0; r < 16; r++) {
        any_block b;
        move(f, (uint8_t *)packed, r, b.bytes, 0);
        for (int c = 0; c < f->values / 32; c++) {
            ox_values v = {0};
            f->decode(&b, c, &v);
            for (int64_t t = 0; t < nt; t++)
                acc[t][r] = with_chunk(acc[t][r], f->scales, &v, &x[t], i * f->values / 32 + c);
        }
    }
}

static void gemm(const layout *f, const ox_gemm_args *a)
{
    for (int64_t t0 = 0; t0 < a->n_tokens; t0 += TOKENS)
        for (int64_t row = 0; row < a->n_rows; row += 16) {
            int64_t nt = a->n_tokens - t0 < TOKENS ? a->n_tokens - t0 : TOKENS;
            const uint8_t *panel = (const uint8_t *)a->w + (size_t)(row / 16) * a->panel_bytes;
            float acc[TOKENS][16] = {{0}};
            q8_row x[TOKENS];
            for (int64_t t = 0; t < nt; t++)
                x[t] = row_of(a, t0 + t);
            for (int64_t i = 0; i < a->k / f->values; i++)
                add_block(f, panel + (size_t)i * 16 * f->bytes, i, x, nt, acc);
            for (int64_t t = 0; t < nt; t++)
                store(a, t0 + t, row, acc[t]);
        }
}

#define WORDS(name, type, values, head_at, unit, units, scales)                                     \
    static const layout layout_##name = {values, sizeof(type), head_at, unit, units, ox_decode_##name, scales}; \
    void ox_dequantise_##name(const void *src, float *dst, int64_t n) { dequantise(&layout_##name, src, dst, n); } \
    void ox_pack_##name(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)     \
    { pack(&layout_##name, src, stride, n_rows, k, panel); }                                        \
    void ox_gemm_##name(const ox_gemm_args *a) { gemm(&layout_##name, a); }

WORDS(Q8_1, ox_q8_1, 32, 0, 2, 2, ONE)
WORDS(Q8_K, ox_q8_k, 256, 0, 2, 0, ONE)
WORDS(Q1_0, ox_q1_0, 128, 0, 2, 1, ONE)
WORDS(Q2_0, ox_q2_0, 64, 0, 2, 1, ONE)
WORDS(Q2_K, ox_q2_k, 256, 80, 2, 2, AND_MINIMA)
WORDS(Q3_K, ox_q3_k, 256, 108, 2, 1, MULTIPLES)
WORDS(TQ1_0, ox_tq1_0, 256, 52, 2, 1, ONE)
WORDS(TQ2_0, ox_tq2_0, 256, 64, 2, 1, ONE)
WORDS(MXFP4, ox_mxfp4, 32, 0, 1, 1, ONE)
WORDS(NVFP4, ox_nvfp4, 64, 0, 2, 0, HALVES)
WORDS(IQ4_NL, ox_iq4_nl, 32, 0, 2, 1, ONE)
WORDS(IQ4_XS, ox_iq4_xs, 256, 0, 2, 2, ONE)
WORDS(IQ2_XXS, ox_iq2_xxs, 256, 0, 2, 1, ONE)
WORDS(IQ2_XS, ox_iq2_xs, 256, 0, 2, 1, MULTIPLES)
WORDS(IQ2_S, ox_iq2_s, 256, 0, 2, 1, MULTIPLES)
WORDS(IQ3_XXS, ox_iq3_xxs, 256, 0, 2, 1, ONE)
WORDS(IQ3_S, ox_iq3_s, 256, 0, 2, 1, ONE)
WORDS(IQ1_S, ox_iq1_s, 256, 0, 2, 1, ONE)
WORDS(IQ1_M, ox_iq1_m, 256, 0, 2, 0, MULTIPLES)
