/* Attention: near the scalar tier's, a query that doesn't depend on its company, and nothing seen that mustn't be. */
#include "check.h"

typedef struct { int n, group, dim, block, window, f16; } shape;
enum { POS = 100 };

static uint16_t half(float x)
{
    uint16_t h;
    ox_table(OX_TIER_SCALAR)->to_f16(&x, &h, 1);
    return h;
}

static void put(void *slab, int f16, size_t i, float x)
{
    if (f16)
        ((uint16_t *)slab)[i] = half(x);
    else
        ((float *)slab)[i] = x;
}

/* Keys and values of one head; NaN in what no query may use: later tokens, and the padding of values. */
static void fill_cache(const shape *s, void *k, void *v, const int32_t *blocks, int n_blocks)
{
    int dims = (s->dim + 15) / 16 * 16;
    for (int token = 0; token < n_blocks * s->block; token++) {
        size_t block = (size_t)blocks[token / s->block], in = (size_t)(token % s->block);
        for (int i = 0; i < dims; i++) {
            float key = token < POS + s->n ? random_float() : NAN, value = token < POS + s->n && i < s->dim ? random_float() : NAN;
            if (i < s->dim)
                put(k, s->f16, (block * (size_t)s->block + in / 16 * 16) * (size_t)s->dim + (size_t)i * 16 + in % 16, key);
            put(v, s->f16, (block * (size_t)s->block + in) * (size_t)dims + (size_t)i, value);
        }
    }
}

static const float *attend(const ox_kernels *t, const shape *s, ox_attn_args a, int first, int n)
{
    size_t row = (size_t)(s->group * s->dim), out_row = row + 1;
    float *out = place(((size_t)(n - 1) * out_row + row) * 4, 4);
    size_t scratch = ox_attn_scratch((size_t)(n * s->group), (size_t)s->dim) * 4;
    a.q = copy(a.q + (size_t)first * row, (size_t)n * row * 4, 4);
    a.out = out;
    a.out_stride = out_row;
    a.pos += first;
    a.n_queries = n;
    a.scratch = place(scratch, 4);
    CALL(t, attention)(&a);
    return out;
}

static void check_shape(const ox_kernels *scalar, const ox_kernels *t, const shape *s)
{
    static float q[20 * 8 * 128];
    int n_blocks = (POS + s->n + s->block - 1) / s->block, dims = (s->dim + 15) / 16 * 16, row = s->group * s->dim;
    size_t item = s->f16 ? 2 : 4, k_bytes = (size_t)(s->block * s->dim) * item, v_bytes = (size_t)(s->block * dims) * item;
    int32_t blocks[16];
    for (int i = 0; i < n_blocks; i++)
        blocks[i] = (i + n_blocks / 2) % n_blocks;
    void *k = place((size_t)n_blocks * k_bytes, 64), *v = place((size_t)n_blocks * v_bytes, 64);
    fill_cache(s, k, v, blocks, n_blocks);
    fill_floats(q, s->n * row, 1);
    ox_attn_args a = {
        .q = q, .q_stride = (size_t)row, .k = k, .v = v, .k_block_bytes = k_bytes, .v_block_bytes = v_bytes,
        .blocks = copy(blocks, (size_t)n_blocks * 4, 4), .block_tokens = s->block, .group = s->group, .head_dim = s->dim,
        .pos = POS, .window = s->window, .scale = 0.2f, .kv_f16 = s->f16,
    };
    seal(k);
    seal(v);
    doing("attention of %d queries, group %d, dim %d, blocks of %d, window %d, %s", s->n, s->group, s->dim, s->block,
          s->window, s->f16 ? "f16" : "f32");
    const float *expected = attend(scalar, s, a, 0, s->n), *got = attend(t, s, a, 0, s->n);
    for (int i = 0; i < s->n; i++) {
        expect_near(expected + i * (row + 1), got + i * (row + 1), row, 2e-6);
        expect(!isnan(got[i * (row + 1)]), "query %d sees what it mustn't", i);
        expect_equal(attend(t, s, a, i, 1), got + i * (row + 1), (size_t)row * 4);
    }
    release();
}

void check_attention(const ox_kernels *scalar, const ox_kernels *t)
{
    static const shape shapes[] = {
        {1, 1, 16, 16, 0, 0}, {5, 3, 33, 16, 0, 0}, {17, 4, 64, 32, 30, 0}, {9, 1, 128, 64, 64, 0}, {11, 7, 20, 128, 1, 0},
        {3, 8, 80, 16, 100, 0},
    };
    for (int i = 0; i < COUNT(shapes); i++)
        for (int f16 = 0; f16 < 2; f16++) {
            shape s = shapes[i];
            s.f16 = f16;
            check_shape(scalar, t, &s);
        }
}
