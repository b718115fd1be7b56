/* Attention over block tables, tile by tile with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022),
 * in spans whose results are merged in ascending order. */
#include "four_bits.h"
#include "functions.h"
#include "scalar.h"

/* What the keys so far have left of one row: weighted values, the largest score, the sum of weights. */
typedef struct { float *acc, *max, *sum; } row_state;

static row_state state_of(const ox_attn_args *a, float *state, int row)
{
    size_t rows = (size_t)a->n_queries * (size_t)a->group, dims = ox_round_up((size_t)a->v_dim, 32);
    return (row_state){state + (size_t)row * dims, state + rows * dims + row, state + rows * (dims + 1) + row};
}

/* Values that are summed: coded ones to the end of the last chunk. */
static int64_t width_of(const ox_attn_args *a)
{
    return ox_kv_coded(a->kv_type) ? (int64_t)ox_round_up((size_t)a->v_dim, 32) : a->v_dim;
}

static const uint8_t *panel_of(const ox_attn_args *a, const void *slab, size_t block_bytes, size_t panel_bytes,
                               int64_t key)
{
    return (const uint8_t *)slab + (size_t)a->blocks[key / a->block_tokens] * block_bytes
           + (size_t)(key % a->block_tokens / 16) * panel_bytes;
}

/* The query as it is multiplied: as it came, or as 8-bit codes; rotated as the keys are. */
static void prepare_query(const ox_attn_args *a, const float *q, float *prepared)
{
    int64_t k = (int64_t)ox_round_up((size_t)a->k_dim, 32);
    float *padded = prepared + k;
    memset(padded, 0, (size_t)k * 4);
    memcpy(padded, q, (size_t)a->k_dim * 4);
    if (a->kv_type == OX_KV_Q4_0)
        ox_rotate(padded, (size_t)k);
    if (ox_kv_coded(a->kv_type))
        ox_quantise_q8(padded, prepared, k, 0, k);
    else
        memcpy(prepared, padded, (size_t)k * 4);
}

/* Codes stand before the scales of a panel. */
static const uint16_t *scales_of(const ox_attn_args *a, const uint8_t *panel, int64_t dims)
{
    return (const uint16_t *)(panel + (a->kv_type == OX_KV_Q8_0 ? 16 : 8) * dims);
}

static int key_code(const ox_attn_args *a, const uint8_t *panel, int64_t lane, int64_t i)
{
    return a->kv_type == OX_KV_Q8_0 ? panel[i / 4 * 64 + 4 * lane + i % 4] - 128 : ox_key_code_4_bits(panel, lane, i);
}

static int value_code(const ox_attn_args *a, const uint8_t *panel, int64_t lane, int64_t i, int64_t dims)
{
    return a->kv_type == OX_KV_Q8_0 ? ((const int8_t *)panel)[(lane / 4 * dims + i) * 4 + lane % 4]
                                    : ox_value_code_4_bits(panel, lane, i, dims);
}

/* Whole numbers within 32 values, and one rounding for each of those. */
static float dot_codes(const ox_attn_args *a, const void *q, const uint8_t *panel, int64_t lane)
{
    int64_t k = (int64_t)ox_round_up((size_t)a->k_dim, 32);
    const int8_t *codes = q;
    const float *d = (const float *)(codes + k);
    const uint16_t *scales = scales_of(a, panel, k);
    float s = 0;
    for (int64_t c = 0; c < k / 32; c++) {
        int32_t dot = 0;
        for (int64_t i = 32 * c; i < 32 * c + 32; i++)
            dot += codes[i] * key_code(a, panel, lane, i);
        s = ox_fma((float)dot, ox_half_to_float(scales[16 * c + lane]) * (d[c] * a->scale), s);
    }
    return s;
}

static float element(const void *base, int32_t type, int64_t i)
{
    return type == OX_KV_F16 ? ox_half_to_float(((const uint16_t *)base)[i]) : ((const float *)base)[i];
}

static float score(const ox_attn_args *a, const float *q, int head, int64_t pos, int64_t key)
{
    size_t bytes = ox_k_panel_bytes((ox_kv_type)a->kv_type, (size_t)a->k_dim);
    const uint8_t *panel = panel_of(a, a->k, a->k_block_bytes, bytes, key);
    float s = 0;
    if (ox_kv_coded(a->kv_type))
        s = dot_codes(a, q, panel, key % 16);
    else
        for (int64_t i = 0; i < a->k_dim; i++)
            s = ox_fma(element(panel, a->kv_type, 16 * i + key % 16), q[i] * a->scale, s);
    if (a->softcap > 0) /* Gemma 2, 2024 */
        s = a->softcap * ox_tanh(s * (1 / a->softcap));
    if (a->slopes) /* Press et al., "Train Short, Test Long", 2021 */
        s -= a->slopes[head] * (float)(pos < key ? key - pos : pos - key);
    if (a->bias) { /* Raffel et al., "T5", 2020 */
        int64_t distance = key - pos < -a->far ? -a->far : key - pos > a->far ? a->far : key - pos;
        s += a->bias[(size_t)head * ox_attn_bias(a->far) + (size_t)(distance + a->far + OX_ATTN_TILE - 1)];
    }
    return s;
}

/* Keys [from, end) of one tile, whose first key is `tile`: the weights of all 64, those outside being zero. */
typedef struct { int64_t tile, from, end; float weight[OX_ATTN_TILE]; } key_tile;

/* acc[i] = correction acc[i] + weights times value i of each key, in ascending order. */
static void add_floats(const ox_attn_args *a, const key_tile *t, float correction, float *acc)
{
    size_t bytes = ox_v_panel_bytes((ox_kv_type)a->kv_type, (size_t)a->v_dim);
    int64_t dims = (a->v_dim + 15) / 16 * 16;
    for (int64_t i = 0; i < a->v_dim; i++) {
        acc[i] *= correction;
        for (int64_t key = t->from; key < t->end; key++) {
            const uint8_t *panel = panel_of(a, a->v, a->v_block_bytes, bytes, key);
            acc[i] = ox_fma(element(panel, a->kv_type, key % 16 * dims + i), t->weight[key - t->tile], acc[i]);
        }
    }
}

/* Weights times the scales of a chunk of values as whole numbers of 14 bits; returns what one is worth. */
static float weigh(const float *x, int32_t *weight)
{
    uint32_t largest = 0;
    for (int i = 0; i < OX_ATTN_TILE; i++) {
        uint32_t bits = ox_float_to_bits(x[i]) & 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    float max = ox_bits_to_float(largest), inverse = largest < 0x06000000 || largest >= 0x7f800000 ? 0 : 16383 / max;
    for (int i = 0; i < OX_ATTN_TILE; i++)
        weight[i] = inverse != 0 ? (int32_t)rintf(x[i] * inverse) : 0;
    return largest >= 0x7f800000 ? NAN : max * (1.0f / 16383);
}

/* The same for coded values: whole numbers within a tile, and one rounding for it. */
static void add_codes(const ox_attn_args *a, const key_tile *t, float correction, float *acc)
{
    size_t bytes = ox_v_panel_bytes((ox_kv_type)a->kv_type, (size_t)a->v_dim);
    int64_t dims = (int64_t)ox_round_up((size_t)a->v_dim, 32);
    for (int64_t chunk = 0; chunk < dims / 32; chunk++) {
        float x[OX_ATTN_TILE] = {0}, unit;
        int32_t weight[OX_ATTN_TILE];
        for (int64_t key = t->from; key < t->end; key++) {
            const uint16_t *scales = scales_of(a, panel_of(a, a->v, a->v_block_bytes, bytes, key), dims);
            x[key - t->tile] = t->weight[key - t->tile] * ox_half_to_float(scales[chunk * 16 + key % 16]);
        }
        unit = weigh(x, weight);
        for (int64_t i = 32 * chunk; i < 32 * chunk + 32; i++) {
            int32_t sum = 0;
            for (int64_t key = t->from; key < t->end; key++)
                sum += weight[key - t->tile]
                       * value_code(a, panel_of(a, a->v, a->v_block_bytes, bytes, key), key % 16, i, dims);
            acc[i] = ox_fma((float)sum, unit, acc[i] * correction);
        }
    }
}

static float correction_of(float old, float new) { return old != new ? ox_exp(old - new) : 1; }

/* Keys [from, end) of the tile that begins with key `tile`. */
static void add_tile(const ox_attn_args *a, const float *q, int head, int64_t pos, int64_t from, int64_t end,
                     row_state s)
{
    key_tile t = {.tile = from / OX_ATTN_TILE * OX_ATTN_TILE, .from = from, .end = end};
    float max = *s.max, lane[16] = {0};
    for (int64_t key = from; key < end; key++)
        max = ox_max(max, t.weight[key - t.tile] = score(a, q, head, pos, key));
    for (int64_t key = from; key < end; key++) {
        float p = ox_exp(t.weight[key - t.tile] - max);
        lane[key % 16] += t.weight[key - t.tile] = p;
    }
    float correction = correction_of(*s.max, max);
    (ox_kv_coded(a->kv_type) ? add_codes : add_floats)(a, &t, correction, s.acc);
    *s.sum = *s.sum * correction + ox_sum_lanes(lane);
    *s.max = max;
}

static void clear(const ox_attn_args *a, row_state s)
{
    memset(s.acc, 0, (size_t)width_of(a) * 4);
    *s.max = -INFINITY;
    *s.sum = 0;
}

/* One row over the keys of a span. */
static void one_span(const ox_attn_args *a, int row, int64_t span, row_state s)
{
    int64_t pos = a->pos + row / a->group, first = ox_attn_first(a, pos), end = ox_attn_end(a, pos);
    int head = row % a->group;
    float *prepared = a->scratch + 2 * ox_attn_state((size_t)a->n_queries * (size_t)a->group, (size_t)a->v_dim);
    clear(a, s);
    prepare_query(a, a->q + (size_t)(row / a->group) * a->q_stride + (size_t)head * (size_t)a->k_dim, prepared);
    first = first < span * OX_ATTN_SPAN ? span * OX_ATTN_SPAN : first;
    end = end < (span + 1) * OX_ATTN_SPAN ? end : (span + 1) * OX_ATTN_SPAN;
    for (int64_t from = first, to; from < end; from = to) {
        to = (from / OX_ATTN_TILE + 1) * OX_ATTN_TILE;
        add_tile(a, prepared, head, pos, from, to < end ? to : end, s);
    }
}

static void merge(const ox_attn_args *a, row_state s, row_state next)
{
    if (*next.max == -INFINITY && *next.sum == 0)
        return;
    float max = ox_max(*next.max, *s.max), mine = ox_exp(*s.max - max), other = ox_exp(*next.max - max);
    for (int64_t i = 0; i < width_of(a); i++)
        s.acc[i] = ox_fma(next.acc[i], other, s.acc[i] * mine);
    *s.sum = *s.sum * mine + *next.sum * other;
    *s.max = max;
}

/* Weighted values to their average. A row that saw nothing gives zeros. */
static void finish(const ox_attn_args *a, int row, row_state s)
{
    float *out = a->out + (size_t)(row / a->group) * a->out_stride + (size_t)(row % a->group) * (size_t)a->v_dim;
    float sum = *s.sum, mine = 1;
    if (a->sinks && sum != 0) {
        float sink = a->sinks[row % a->group], max = ox_max(*s.max, sink);
        mine = ox_exp(*s.max - max);
        sum = sum * mine + ox_exp(sink - max);
    }
    for (int64_t i = 0; i < width_of(a); i++)
        s.acc[i] = sum == 0 ? 0 : s.acc[i] * mine / sum;
    if (a->kv_type == OX_KV_Q4_0)
        ox_rotate(s.acc, (size_t)width_of(a));
    memcpy(out, s.acc, (size_t)a->v_dim * 4);
}

void ox_attention(const ox_attn_args *a)
{
    int rows = a->n_queries * a->group;
    float *other = a->scratch + ox_attn_state((size_t)rows, (size_t)a->v_dim);
    for (int row = 0; row < rows; row++)
        if (a->span >= 0)
            one_span(a, row, a->span, state_of(a, a->state, row));
        else {
            row_state s = state_of(a, a->scratch, row), next = state_of(a, other, row);
            int64_t end = ox_attn_end(a, a->pos + row / a->group);
            int64_t first = ox_attn_first(a, a->pos + row / a->group) / OX_ATTN_SPAN;
            one_span(a, row, first, s);
            for (int64_t i = first + 1; i * OX_ATTN_SPAN < end; i++) {
                one_span(a, row, i, next);
                merge(a, s, next);
            }
            finish(a, row, s);
        }
}

void ox_attention_merge(const ox_attn_args *a, int64_t n)
{
    size_t rows = (size_t)a->n_queries * (size_t)a->group, floats = ox_attn_state(rows, (size_t)a->v_dim);
    for (int row = 0; row < (int)rows; row++) {
        row_state s = state_of(a, a->state, row);
        for (int64_t i = 1; i < n; i++)
            merge(a, s, state_of(a, a->state + (size_t)i * floats, row));
        finish(a, row, s);
    }
}

void ox_index_scores(const ox_attn_args *a, const float *weights, size_t stride)
{
    float *prepared = a->scratch;
    for (int row = 0; row < a->n_queries * a->group; row++) {
        int query = row / a->group, head = row % a->group;
        int64_t pos = a->pos + query, end = ox_attn_end(a, pos);
        float *out = a->out + (size_t)(weights ? query : row) * a->out_stride;
        prepare_query(a, a->q + (size_t)query * a->q_stride + (size_t)head * (size_t)a->k_dim, prepared);
        for (int64_t key = a->span * OX_ATTN_SPAN; key < end; key++) {
            float s = score(a, prepared, head, pos, key);
            if (weights) /* NaN stays */
                s = ox_fma(ox_max(0, s), weights[(size_t)query * stride + (size_t)head], head ? out[key] : 0);
            out[key] = s;
        }
    }
}
