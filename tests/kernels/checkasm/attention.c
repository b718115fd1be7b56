/* Attention: the scalar tier's bits, a query that depends neither on its company nor on how keys are divided into spans,
 * and nothing seen that mustn't be. */
#include "check.h"

typedef struct {
    int n, group, k_dim, v_dim, block, window, pos, full; /* full: not causal */
    float softcap;
    int slopes, sinks, chunked, far; /* far: biases of distances up to that; 0: none */
} shape;

enum { LATER = 3, MAX_BLOCKS = 80, MAX_GROUP = 16, MAX_FAR = 700 };

static int row_floats(const ox_attn_args *a) { return a->group * a->v_dim; }

/* Keys and values of one head, by the scalar tier; NaN in keys that no query may use, and in what pads values. */
static void fill_cache(const ox_kernels *scalar, const ox_attn_args *a, uint8_t *k, uint8_t *v)
{
    static float x[128];
    size_t k_panel = ox_k_panel_bytes((ox_kv_type)a->kv_type, (size_t)a->k_dim);
    size_t v_panel = ox_v_panel_bytes((ox_kv_type)a->kv_type, (size_t)a->v_dim);
    for (int64_t key = ox_attn_first(a, a->pos); key < ox_attn_end(a, a->pos + a->n_queries - 1); key++) {
        size_t block = (size_t)a->blocks[key / a->block_tokens], panel = (size_t)(key % a->block_tokens / 16);
        fill_floats(x, a->k_dim, 1);
        CALL(scalar, store_key[a->kv_type])(x, k + block * a->k_block_bytes + panel * k_panel, key % 16, a->k_dim);
        fill_floats(x, a->v_dim, 1);
        CALL(scalar, store_value[a->kv_type])(x, v + block * a->v_block_bytes + panel * v_panel, key % 16, a->v_dim);
    }
}

/* Queries first..first+n-1, all keys in one call or span by span. */
static const float *attend(const ox_kernels *t, ox_attn_args a, int first, int n, int split)
{
    size_t rows = (size_t)(n * a.group), out_row = (size_t)row_floats(&a) + 1, state = ox_attn_state(rows, (size_t)a.v_dim);
    a.q = copy(a.q + (size_t)first * a.q_stride, ((size_t)(n - 1) * a.q_stride + (size_t)(a.group * a.k_dim)) * 4, 4);
    a.out = place(((size_t)n * out_row - 1) * 4, 4);
    a.out_stride = out_row;
    a.pos += first;
    a.n_queries = n;
    a.scratch = place(ox_attn_scratch(rows, (size_t)a.k_dim, (size_t)a.v_dim) * 4, 4);
    a.span = -1;
    if (!split) {
        CALL(t, attention)(&a);
        return a.out;
    }
    int64_t begin = ox_attn_first(&a, a.pos) / OX_ATTN_SPAN, end = ox_attn_end(&a, a.pos + n - 1);
    int64_t spans = end > begin * OX_ATTN_SPAN ? (end + OX_ATTN_SPAN - 1) / OX_ATTN_SPAN - begin : 1;
    float *states = place((size_t)spans * state * 4, 4);
    for (int64_t i = spans; i-- > 0;) { /* in any order */
        ox_attn_args one = a;
        one.span = begin + i;
        one.state = states + (size_t)i * state;
        CALL(t, attention)(&one);
    }
    a.state = states;
    CALL(t, attention_merge)(&a, spans);
    return a.out;
}

static void compare(const ox_kernels *scalar, const ox_kernels *t, const ox_attn_args *a)
{
    int row = row_floats(a);
    const float *expected = attend(scalar, *a, 0, a->n_queries, 0), *got = attend(t, *a, 0, a->n_queries, 0);
    const float *split = attend(t, *a, 0, a->n_queries, 1);
    for (int i = 0; i < a->n_queries; i++) {
        const float *mine = got + i * (row + 1);
        expect_same(expected + i * (row + 1), mine, row);
        for (int j = 0; j < row; j++) {
            expect(!isnan(mine[j]), "query %d sees what it mustn't", i);
            expect(mine[j] == 0 || ox_attn_end(a, a->pos + i) > 0, "query %d sees nothing and gives %g", i, mine[j]);
        }
        expect_equal(split + i * (row + 1), mine, (size_t)row * 4);
        expect_equal(attend(t, *a, i, 1, 0), mine, (size_t)row * 4);
    }
}

static void check_shape(const ox_kernels *scalar, const ox_kernels *t, const shape *s, int kv_type)
{
    static const char *names[OX_N_KV_TYPES] = {"f32", "f16", "q8_0", "q4_0"};
    static float q[20 * MAX_GROUP * 128], slopes[MAX_GROUP], sinks[MAX_GROUP];
    static float bias[MAX_GROUP * (2 * (MAX_FAR + OX_ATTN_TILE) - 1)];
    size_t n_bias = (size_t)s->group * ox_attn_bias(s->far);
    int n_keys = s->pos + s->n + LATER, n_blocks = (n_keys + s->block - 1) / s->block;
    int32_t blocks[MAX_BLOCKS];
    for (int i = 0; i < n_blocks; i++)
        blocks[i] = (i + n_blocks / 2) % n_blocks;
    ox_attn_args a = {
        .q = q, .q_stride = (size_t)(s->group * s->k_dim + 5), .blocks = copy(blocks, (size_t)n_blocks * 4, 4),
        .block_tokens = s->block, .kv_type = kv_type, .n_queries = s->n, .group = s->group, .k_dim = s->k_dim,
        .v_dim = s->v_dim, .pos = s->pos, .n_keys = n_keys, .window = s->window, .causal = !s->full,
        .chunked = s->chunked, .scale = 0.2f, .softcap = s->softcap, .far = s->far,
    };
    fill_floats(q, COUNT(q), 1);
    fill_floats(slopes, s->group, 0.5f);
    for (int i = 0; i < s->group; i++)
        slopes[i] = i % 3 == 1 ? slopes[i] : fabsf(slopes[i]);
    fill_floats(sinks, s->group, 3);
    a.slopes = s->slopes ? copy(slopes, (size_t)s->group * 4, 4) : NULL;
    a.sinks = s->sinks ? copy(sinks, (size_t)s->group * 4, 4) : NULL;
    fill_floats(bias, (int)n_bias, 2);
    for (size_t i = 0; i < n_bias; i++) { /* both ends are repeated */
        size_t row = ox_attn_bias(s->far), at = i % row, first = OX_ATTN_TILE - 1, last = first + 2 * (size_t)s->far;
        bias[i] = bias[i - at + (at < first ? first : at > last ? last : at)];
    }
    a.bias = s->far ? copy(bias, n_bias * 4, 4) : NULL;
    a.k_block_bytes = (size_t)s->block / 16 * ox_k_panel_bytes((ox_kv_type)kv_type, (size_t)s->k_dim);
    a.v_block_bytes = (size_t)s->block / 16 * ox_v_panel_bytes((ox_kv_type)kv_type, (size_t)s->v_dim);
    size_t k_bytes = (size_t)n_blocks * a.k_block_bytes, v_bytes = (size_t)n_blocks * a.v_block_bytes;
    a.k = memset(place(k_bytes, 64), 0xff, k_bytes); /* NaN as a float, a half and the scale of codes */
    a.v = memset(place(v_bytes, 64), 0xff, v_bytes);
    doing("attention of %d queries at %d, group %d, keys of %d, values of %d, blocks of %d, window %d, %s, softcap %g%s%s%s%s, far %d",
          s->n, s->pos, s->group, s->k_dim, s->v_dim, s->block, s->window, names[kv_type], s->softcap,
          s->slopes ? ", slopes" : "", s->sinks ? ", sinks" : "", s->full ? ", both sides" : "", s->chunked ? ", chunked" : "", s->far);
    fill_cache(scalar, &a, (uint8_t *)a.k, (uint8_t *)a.v);
    seal(a.k);
    seal(a.v);
    compare(scalar, t, &a);
    release();
}

void check_attention(const ox_kernels *scalar, const ox_kernels *t)
{
    static const shape shapes[] = {
        {1, 1, 16, 16, 16, 0, 100, 0, 0, 0, 0},    {5, 3, 33, 40, 16, 0, 100, 0, 0, 0, 0},
        {17, 4, 64, 64, 32, 30, 550, 0, 0, 0, 1},  {9, 1, 128, 16, 64, 64, 100, 0, 0, 0, 0},
        {11, 7, 20, 33, 128, 1, 100, 0, 0, 0, 0},  {3, 8, 80, 100, 16, 100, 100, 0, 30, 1, 1},
        {9, 1, 100, 16, 16, 0, 1030, 0, 5, 1, 0},  {8, 2, 20, 70, 16, 0, -5, 0, 0, 0, 1},
        {3, 16, 64, 96, 64, 0, 700, 1, 30, 0, 1},  {6, 2, 1, 1, 16, 0, 500, 1, 0, 1, 0},
        {7, 5, 24, 31, 256, 40, 503, 1, 20, 1, 1}, {10, 2, 32, 48, 16, 600, 1020, 0, 0, 1, 0},
        {15, 2, 24, 16, 16, 50, 100, 0, 0, 0, 1, 1}, {9, 3, 16, 40, 32, 512, 1020, 0, 0, 1, 0, 1},
        {20, 1, 33, 20, 64, 4, 130, 0, 30, 0, 0, 1}, {12, 3, 16, 16, 16, 0, 300, 1, 0, 0, 0, 0, 128},
        {5, 2, 40, 33, 32, 0, 1000, 0, 5, 1, 1, 0, 1}, {1, 8, 64, 64, 16, 90, 600, 0, 0, 0, 0, 0, 700},
    };
    for (int i = 0; i < COUNT(shapes); i++)
        for (int kv_type = 0; kv_type < OX_N_KV_TYPES; kv_type++)
            check_shape(scalar, t, &shapes[i], kv_type);
}
