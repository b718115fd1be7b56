/* The choice of keys: the scalar tier's scores, which depend neither on their company nor on where they begin, the
 * largest of many, and lanes that are put together. */
#include "check.h"

typedef struct { int n, heads, dim, block, pos, weighted; } shape;

enum { LATER = 3, MAX_BLOCKS = 80, MAX_HEADS = 17, MAX_KEYS = 1100 };

/* Scores of queries first..first+n-1 for keys from a span on to n_keys; NaN where there are none. */
static const float *scores(const ox_kernels *t, ox_attn_args a, const float *weights, size_t stride, int first, int n)
{
    size_t rows = (size_t)n * (size_t)(weights ? 1 : a.group), keys = (size_t)a.n_keys;
    a.q = copy(a.q + (size_t)first * a.q_stride, ((size_t)(n - 1) * a.q_stride + (size_t)(a.group * a.k_dim)) * 4, 4);
    weights = weights ? copy(weights + (size_t)first * stride, ((size_t)(n - 1) * stride + (size_t)a.group) * 4, 4) : NULL;
    a.out = memset(place(rows * keys * 4, 4), 0xff, rows * keys * 4);
    a.out_stride = keys;
    a.pos += first;
    a.n_queries = n;
    a.scratch = place(ox_attn_scratch((size_t)(n * a.group), (size_t)a.k_dim, 0) * 4, 4);
    CALL(t, index_scores)(&a, weights, stride);
    return a.out;
}

static void compare(const ox_kernels *scalar, const ox_kernels *t, ox_attn_args a, const float *weights, size_t stride)
{
    int per = weights ? 1 : a.group;
    const float *expected = scores(scalar, a, weights, stride, 0, a.n_queries);
    const float *got = scores(t, a, weights, stride, 0, a.n_queries);
    for (int i = 0; i < a.n_queries * per; i++) {
        int64_t end = ox_attn_end(&a, a.pos + i / per);
        expect_same(expected + i * a.n_keys, got + i * a.n_keys, a.n_keys);
        for (int64_t key = 0; key < a.n_keys; key++)
            expect(isnan(got[i * a.n_keys + key]) == (key < a.span * OX_ATTN_SPAN || key >= end), "score %d of key %d", i,
                   (int)key);
    }
    for (int i = 0; i < a.n_queries; i++)
        expect_equal(scores(t, a, weights, stride, i, 1), got + i * per * a.n_keys, (size_t)(per * a.n_keys) * 4);
    for (a.span++; a.span * OX_ATTN_SPAN < a.pos + a.n_queries; a.span++) {
        int64_t first = a.span * OX_ATTN_SPAN, end = ox_attn_end(&a, a.pos);
        const float *later = scores(t, a, weights, stride, 0, a.n_queries);
        for (int i = 0; i < a.n_queries * per && first < end; i++)
            expect_equal(later + i * a.n_keys + first, got + i * a.n_keys + first, (size_t)(end - first) * 4);
    }
}

static void check_scores(const ox_kernels *scalar, const ox_kernels *t, const shape *s, int kv_type)
{
    static float q[20 * MAX_HEADS * 128], weights[20 * (MAX_HEADS + 3)], key[128];
    int n_keys = s->pos + s->n + LATER, n_blocks = (n_keys + s->block - 1) / s->block;
    int32_t blocks[MAX_BLOCKS];
    for (int i = 0; i < n_blocks; i++)
        blocks[i] = (i + n_blocks / 2) % n_blocks;
    size_t panel = ox_k_panel_bytes((ox_kv_type)kv_type, (size_t)s->dim), bytes = (size_t)(n_blocks * s->block / 16) * panel;
    uint8_t *k = memset(place(bytes, 64), 0xff, bytes);
    ox_attn_args a = {
        .q = q, .q_stride = (size_t)(s->heads * s->dim + 5), .k = k, .k_block_bytes = (size_t)(s->block / 16) * panel,
        .blocks = copy(blocks, (size_t)n_blocks * 4, 4), .block_tokens = s->block, .kv_type = kv_type, .n_queries = s->n,
        .group = s->heads, .k_dim = s->dim, .pos = s->pos, .n_keys = n_keys, .causal = 1, .scale = 0.2f,
    };
    doing("scores of %d queries at %d, %d heads of %d, blocks of %d, kind %d, %s", s->n, s->pos, s->heads, s->dim, s->block,
          kv_type, s->weighted ? "weighted" : "each");
    fill_floats(q, COUNT(q), 1);
    fill_floats(weights, COUNT(weights), 1);
    for (int64_t i = 0; i < s->pos + s->n; i++) {
        fill_floats(key, s->dim, 1);
        CALL(scalar, store_key[kv_type])(key, k + ((size_t)blocks[i / s->block] * (size_t)(s->block / 16)
                                                   + (size_t)(i % s->block / 16)) * panel, i % 16, s->dim);
    }
    seal(k);
    compare(scalar, t, a, s->weighted ? weights : NULL, (size_t)(s->heads + 3));
    release();
}

/* Few values, so that many are equal, and a NaN. */
static void check_largest(const ox_kernels *t, int64_t n, int64_t unit)
{
    static float values[MAX_KEYS];
    static int32_t expected[MAX_KEYS];
    int64_t k = n / 3 + 1, n_units = (n + unit - 1) / unit;
    for (int64_t i = 0; i < n; i++)
        values[i] = i == n / 2 ? NAN : roundf(random_float() * 20) / 8;
    const float *x = copy(values, (size_t)n * 4, 4);
    doing("the largest of %d values, and of %d each", (int)n, (int)unit);
    int32_t *chosen = place((size_t)k * 4, 4);
    CALL(t, choose)(x, n, k, chosen);
    for (int64_t i = 0, found = 0; i < n; i++) {
        int64_t before = 0; /* those that are taken rather than this one */
        for (int64_t j = 0; j < n; j++)
            before += j != i && (isnan(x[j]) || x[j] > x[i] || (x[j] == x[i] && j < i));
        if (isnan(x[i]) || before < k)
            expected[found++] = (int32_t)i;
    }
    expect_equal(chosen, expected, (size_t)k * 4);
    float *y = place((size_t)n_units * 4, 4);
    CALL(t, block_max)(x, n, unit, y);
    for (int64_t i = 0; i < n; i++)
        expect(isnan(x[i]) ? isnan(y[i / unit]) : !(x[i] > y[i / unit]), "value %d is larger than the largest", (int)i);
    for (int64_t u = 0; u < n_units; u++) {
        int found = 0;
        for (int64_t i = u * unit; i < n && i < (u + 1) * unit; i++)
            found |= x[i] == y[u] || (isnan(x[i]) && isnan(y[u]));
        expect(found, "the largest of %d is none of them", (int)u);
    }
    release();
}

/* Tokens stored in lanes of several panels, and the same ones stored side by side. */
static void check_gathered(const ox_kernels *scalar, const ox_kernels *t, int kv_type, int n, int dim, int values)
{
    enum { PANELS = 3 };
    static float x[16][128];
    const void *panels[16];
    int32_t lanes[16];
    size_t bytes = values ? ox_v_panel_bytes((ox_kv_type)kv_type, (size_t)dim) : ox_k_panel_bytes((ox_kv_type)kv_type, (size_t)dim);
    uint8_t *from[PANELS], *side_by_side = memset(place(bytes, 64), 0, bytes), *got = memset(place(bytes, 64), 0, bytes);
    doing("%d %s of %d put together, kind %d", n, values ? "values" : "keys", dim, kv_type);
    for (int p = 0; p < PANELS; p++)
        from[p] = memset(place(bytes, 64), 0, bytes);
    for (int i = 0; i < n; i++) {
        uint8_t *panel = from[i < n / 2 ? i / 5 : i % PANELS]; /* several from one, and each from another */
        panels[i] = panel;
        lanes[i] = (5 * i + 3) % 16;
        fill_floats(x[i], dim, 1);
        if (values) {
            CALL(scalar, store_value[kv_type])(x[i], panel, lanes[i], dim);
            CALL(scalar, store_value[kv_type])(x[i], side_by_side, i, dim);
        } else {
            CALL(scalar, store_key[kv_type])(x[i], panel, lanes[i], dim);
            CALL(scalar, store_key[kv_type])(x[i], side_by_side, i, dim);
        }
    }
    for (int p = 0; p < PANELS; p++)
        seal(from[p]);
    if (values)
        CALL(t, gather_values[kv_type])(panels, lanes, n, got, dim);
    else
        CALL(t, gather_keys[kv_type])(panels, lanes, n, got, dim);
    expect_equal(got, side_by_side, bytes);
    release();
}

void check_choice(const ox_kernels *scalar, const ox_kernels *t)
{
    static const shape shapes[] = {
        {1, 1, 16, 16, 100, 1}, {5, 12, 33, 16, 100, 1},  {3, 17, 64, 32, 550, 1}, {1, 7, 128, 256, 1030, 1},
        {4, 1, 20, 128, 0, 0},  {3, 4, 128, 64, 700, 0}, {1, 4, 31, 16, 515, 0},  {20, 2, 1, 16, 30, 1},
    };
    static const int sizes[][2] = {{1, 16}, {7, 16}, {16, 40}, {12, 128}, {15, 33}, {16, 128}, {16, 1}};
    for (int i = 0; i < COUNT(shapes); i++)
        for (int kv_type = 0; kv_type < OX_N_KV_TYPES; kv_type++)
            check_scores(scalar, t, &shapes[i], kv_type);
    for (int64_t n = 1; n < MAX_KEYS; n += n / 2 + 1)
        check_largest(t, n, 1 + n % 37);
    for (int i = 0; i < COUNT(sizes); i++)
        for (int kv_type = 0; kv_type < OX_N_KV_TYPES; kv_type++)
            for (int values = 0; values < 2; values++)
                check_gathered(scalar, t, kv_type, sizes[i][0], sizes[i][1], values);
}
