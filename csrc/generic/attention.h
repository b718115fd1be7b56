/* Attention over block tables: tiles of 64 keys with an online softmax, in spans that are merged in ascending order.
 * Included after rows.h and quantise.h. */
#include "attention_products.h"

enum { SHARED_ROWS = 8 }; /* rows from which converting a tile of halves once costs less than on each load */
enum { UNPACKED_ROWS = 16 }; /* and unpacking one of codes */

/* Soft-cap, ALiBi and biases of one row's scores. */
INLINE void bend(const attn *s, int row, int64_t tile)
{
    const ox_attn_args *a = s->a;
    float *x = s->scores + row * OX_ATTN_TILE;
    int64_t pos = a->pos + row / a->group;
    if (a->softcap > 0)
        for (int i = 0; i < OX_ATTN_TILE; i += VL)
            vf_store(x + i, vf_mul(vf_set1(a->softcap), vf_tanh(vf_mul(vf_load(x + i), vf_set1(1 / a->softcap)))));
    if (a->slopes)
        for (int i = 0; i < OX_ATTN_TILE; i++)
            x[i] -= a->slopes[row % a->group] * (float)(pos < tile + i ? tile + i - pos : pos - tile - i);
    if (a->bias) {
        int64_t least = -a->far - (OX_ATTN_TILE - 1), distance = tile - pos;
        distance = distance < least ? least : distance > a->far ? a->far : distance;
        const float *bias = a->bias + (size_t)(row % a->group) * ox_attn_bias(a->far) + (distance - least);
        for (int i = 0; i < OX_ATTN_TILE; i += VL)
            vf_store(x + i, vf_add(vf_load(x + i), vf_load(bias + i)));
    }
}

/* Online softmax of one row over keys [from, to) of a tile: scores become weights. */
APART_ON_LINE void soften(const attn *s, int row, int64_t tile, int from, int to)
{
    float *p = s->scores + row * OX_ATTN_TILE;
    if (s->a->softcap > 0 || s->a->slopes || s->a->bias)
        bend(s, row, tile);
    for (int i = 0; to - from < OX_ATTN_TILE && i < OX_ATTN_TILE; i++)
        if (i < from || i >= to)
            p[i] = -INFINITY;
    vf x[OX_ATTN_TILE / VL], max = vf_set1(s->max[row]), sum[NV];
    UNROLL for (int i = 0; i < OX_ATTN_TILE / VL; i++) {
        x[i] = vf_load(p + i * VL);
        max = vf_max(max, x[i]);
    }
    float old = s->max[row], new = vf_reduce_max(max), correction[VL];
    UNROLL for (int i = 0; i < OX_ATTN_TILE / VL; i++) {
        x[i] = vf_exp(vf_sub(x[i], vf_set1(new)));
        sum[i % NV] = vf_add(i < NV ? vf_zero() : sum[i % NV], x[i]);
        vf_store(p + i * VL, x[i]);
    }
    vf_store(correction, vf_set1(1)); /* exp(0), most of the time */
    if (old != new)
        vf_store(correction, vf_exp(vf_sub(vf_set1(old), vf_set1(new))));
    s->correction[row] = correction[0];
    s->sum[row] = s->sum[row] * correction[0] + sum_lanes(sum);
    s->max[row] = new;
}

INLINE const uint8_t *panel_at(const ox_attn_args *a, const void *slab, size_t block_bytes, size_t panel_bytes,
                               int64_t key)
{
    size_t block = (size_t)a->blocks[key / a->block_tokens], in_block = (size_t)(key % a->block_tokens / 16);
    return (const uint8_t *)slab + block * block_bytes + in_block * panel_bytes;
}

/* The panels of a tile and of the next one, which lie anywhere. In place of one behind the last key stands this tile's
 * first: no product reads it, and to ask for it again costs nothing. */
APART void find_panels(attn *s, int64_t tile, int64_t end)
{
    const ox_attn_args *a = s->a;
    size_t k_bytes = ox_k_panel_bytes((ox_kv_type)a->kv_type, (size_t)a->k_dim);
    size_t v_bytes = ox_v_panel_bytes((ox_kv_type)a->kv_type, (size_t)a->v_dim);
    for (int i = 0; i < 8; i++) {
        int64_t key = tile + 16 * i < end ? tile + 16 * i : tile;
        const uint8_t *k = panel_at(a, a->k, a->k_block_bytes, k_bytes, key);
        const uint8_t *v = panel_at(a, a->v, a->v_block_bytes, v_bytes, key);
        (i < 4 ? s->k_panel : s->k_next)[i % 4] = k;
        (i < 4 ? s->v_panel : s->v_next)[i % 4] = v;
    }
}

/* Halves to floats, once for all rows; keys that no row sees may hold anything, and stay unused. */
APART void convert_tile(attn *s, int n_keys)
{
    size_t k = (size_t)s->a->k_dim * 16, v = (size_t)s->dims * 16;
    for (int i = 0; 16 * i < n_keys; i++) {
        for (size_t j = 0; j < k; j += VL)
            vf_store(s->k_tile + (size_t)i * k + j, vf_from_half((const uint16_t *)s->k_panel[i] + j));
        for (size_t j = 0; j < v; j += VL)
            vf_store(s->v_tile + (size_t)i * v + j, vf_from_half((const uint16_t *)s->v_panel[i] + j));
        s->k_panel[i] = (const uint8_t *)(s->k_tile + (size_t)i * k);
        s->v_panel[i] = (const uint8_t *)(s->v_tile + (size_t)i * v);
    }
}

/* Codes of 4 bits to those of 8, `half` bytes at a time, and the scales behind them. */
INLINE void unpack_codes(const uint8_t *src, uint8_t *dst, int bytes, int half, vb table)
{
    for (int i = 0; i < bytes; i += half)
        for (int j = i; j < i + half; j += VB) {
            vb both = vb_load(src + j);
            vb_store(dst + i + j, vb_lookup(table, vb_and(both, vb_set1(15))));
            vb_store(dst + i + j + half, vb_lookup(table, vb_and(vb_shr(both, 4), vb_set1(15))));
        }
    memcpy(dst + 2 * bytes, src + bytes, (size_t)bytes / 8);
}

/* As convert_tile, for codes of 4 bits. */
APART void unpack_tile(attn *s, int n_keys)
{
    vb table = vb_table(ox_codes_kv), unsigned_table = vb_xor(table, vb_set1((char)0x80));
    int k = 256 * s->chunks, v = 8 * s->dims;
    for (int i = 0; 16 * i < n_keys; i++) {
        uint8_t *keys = (uint8_t *)s->k_tile + i * (k / 8 * 17), *values = (uint8_t *)s->v_tile + i * (v / 8 * 17);
        unpack_codes(s->k_panel[i], keys, k, 256, unsigned_table);
        unpack_codes(s->v_panel[i], values, v, 64, table);
        s->k_panel[i] = keys;
        s->v_panel[i] = values;
    }
}

/* Where every query sees all of a tile, rows share the loads of values; on the edges (the diagonal, the start of a
 * window) each query takes its own range, so that no row ever touches a value it must not see. */
INLINE void weigh_values(const attn *s, int64_t tile, const int type)
{
    const ox_attn_args *a = s->a;
    int64_t last = a->pos + a->n_queries - 1;
    int whole = ox_attn_end(a, a->pos) >= tile + OX_ATTN_TILE && ox_attn_first(a, last) <= tile;
    for (int i = 0; i < a->n_queries; i++) {
        int64_t low = ox_attn_first(a, a->pos + i) - tile, high = ox_attn_end(a, a->pos + i) - tile;
        int from = low > 0 ? (int)(low < OX_ATTN_TILE ? low : OX_ATTN_TILE) : 0;
        int to = high < OX_ATTN_TILE ? (int)(high > 0 ? high : 0) : OX_ATTN_TILE;
        for (int h = 0; from < to && h < a->group; h++)
            soften(s, i * a->group + h, tile, from, to);
        if (from < to && !whole)
            values_of_type(s, i * a->group, a->group, from, to, type);
    }
    if (whole)
        values_of_type(s, 0, s->rows, 0, OX_ATTN_TILE, type);
}

INLINE void attend_tile(attn *s, int64_t tile, int64_t end, const int type)
{
    int n_keys = end - tile < OX_ATTN_TILE ? (int)(end - tile) : OX_ATTN_TILE;
    find_panels(s, tile, end);
    if (type == OX_KV_F16 && s->rows >= SHARED_ROWS) {
        convert_tile(s, n_keys);
        score_tile_of_type(s, n_keys, CONVERTED);
        weigh_values(s, tile, CONVERTED);
        return;
    }
    if (type == OX_KV_Q4_0 && s->rows >= UNPACKED_ROWS) {
        unpack_tile(s, n_keys);
        score_tile_of_type(s, n_keys, UNPACKED);
        weigh_values(s, tile, UNPACKED);
        return;
    }
    score_tile_of_type(s, n_keys, type);
    weigh_values(s, tile, type);
}

INLINE void use_state(attn *s, float *state)
{
    s->acc = state;
    s->max = state + s->rows * s->dims;
    s->sum = s->max + s->rows;
}

/* All rows over the keys of one span. */
INLINE void attend_span(attn *s, int64_t span, const int type)
{
    const ox_attn_args *a = s->a;
    int64_t end = ox_attn_end(a, a->pos + a->n_queries - 1), first = ox_attn_first(a, a->pos);
    for (int i = 0; i < s->rows * s->dims; i += VL)
        vf_store(s->acc + i, vf_zero());
    for (int r = 0; r < s->rows; r++) {
        s->max[r] = -INFINITY;
        s->sum[r] = 0;
    }
    first = first > span * OX_ATTN_SPAN ? first / OX_ATTN_TILE * OX_ATTN_TILE : span * OX_ATTN_SPAN;
    end = end < (span + 1) * OX_ATTN_SPAN ? end : (span + 1) * OX_ATTN_SPAN;
    for (int64_t tile = first; tile < end; tile += OX_ATTN_TILE)
        attend_tile(s, tile, end, type);
}

/* 8-bit codes of one row, its scales and the start values of its sums, to their places in a block of R rows. */
INLINE void pack_codes(const attn *s, int block, int r, int R)
{
    int64_t k = 32 * s->chunks;
    const float *d = (const float *)(s->codes + k);
    const int32_t *sums = (const int32_t *)(d + 2 * s->chunks);
    int8_t *q = (int8_t *)s->q + block * k;
    float *scale = s->q_scale + 2 * block * s->chunks;
    int32_t *start = (int32_t *)(scale + s->chunks * R);
    for (int64_t i = 0; i < k; i++)
        q[(i / 4 * R + r) * 4 + i % 4] = s->codes[i];
    for (int c = 0; c < s->chunks; c++) {
        scale[c * R + r] = d[c] * s->a->scale;
        start[c * R + r] = sums[c] * KEY_OFFSET;
    }
}

/* Queries to blocks of interleaved rows, scaled. */
APART void pack_queries(const attn *s)
{
    const ox_attn_args *a = s->a;
    const int type = a->kv_type;
    float *padded = (float *)s->codes + 32 * s->chunks;
    for (int i = a->k_dim; i < 32 * s->chunks; i++)
        padded[i] = 0;
    for (int block = 0, R; block < s->rows; block += R) {
        R = row_block(s, block);
        for (int r = 0; r < R; r++) {
            int row = block + r;
            const float *q = a->q + (size_t)(row / a->group) * a->q_stride
                + (size_t)(row % a->group) * (size_t)a->k_dim;
            if (ox_kv_coded(type))
                memcpy(padded, q, (size_t)a->k_dim * 4);
            else
                for (int i = 0; i < a->k_dim; i++)
                    s->q[block * a->k_dim + i * R + r] = q[i] * a->scale;
            if (type == OX_KV_Q4_0) {
                for (int i = a->k_dim; i < 32 * s->chunks; i++) /* the last row's are rotated */
                    padded[i] = 0;
                ox_rotate(padded, 32 * (size_t)s->chunks);
            }
            if (ox_kv_coded(type)) {
                quantise_q8(padded, s->codes, 32 * s->chunks, 0, 32 * s->chunks);
                pack_codes(s, block, r, R);
            }
        }
    }
}

INLINE attn begin(const ox_attn_args *a)
{
    attn s = {.a = a, .rows = a->n_queries * a->group, .chunks = (a->k_dim + 31) / 32};
    int unit = ox_kv_coded(a->kv_type) ? 32 : 16, padded = (s.rows + 15) / 16 * 16, k = 32 * s.chunks;
    s.dims = (a->v_dim + unit - 1) / unit * unit;
    s.q = a->scratch + 2 * ox_attn_state((size_t)s.rows, (size_t)a->v_dim);
    s.q_scale = s.q + padded * k / 4; /* where the codes end */
    s.scores = s.q + padded * k;
    s.correction = s.scores + padded * OX_ATTN_TILE;
    s.k_tile = s.correction + padded;
    s.v_tile = s.k_tile + OX_ATTN_TILE * k;
    s.v_scale = s.v_tile + OX_ATTN_TILE * s.dims;
    s.codes = (int8_t *)(s.v_scale + OX_ATTN_TILE * s.dims);
    return s;
}

/* A row's sums of another span, added to this one's. A span in which a row saw nothing is passed over. */
INLINE void merge_row(const attn *s, const attn *next, int row)
{
    if (next->max[row] == -INFINITY && next->sum[row] == 0)
        return;
    float max = next->max[row] > s->max[row] ? next->max[row] : s->max[row], mine[VL], other[VL];
    vf_store(mine, vf_exp(vf_sub(vf_set1(s->max[row]), vf_set1(max))));
    vf_store(other, vf_exp(vf_sub(vf_set1(next->max[row]), vf_set1(max))));
    float *acc = s->acc + row * s->dims, *more = next->acc + row * s->dims;
    for (int i = 0; i < s->dims; i += VL)
        vf_store(acc + i, vf_fma(vf_load(more + i), vf_set1(other[0]), vf_mul(vf_load(acc + i), vf_set1(mine[0]))));
    s->sum[row] = s->sum[row] * mine[0] + next->sum[row] * other[0];
    s->max[row] = max;
}

APART void merge_state(const attn *s, float *state)
{
    attn next = *s;
    use_state(&next, state);
    for (int row = 0; row < s->rows; row++)
        merge_row(s, &next, row);
}

/* Sums to averages; a sink joins the sum of weights alone. A row that saw nothing gives zeros. */
APART void finish(const attn *s)
{
    const ox_attn_args *a = s->a;
    for (int row = 0; row < s->rows; row++) {
        float *out = a->out + (size_t)(row / a->group) * a->out_stride + (size_t)(row % a->group) * (size_t)a->v_dim;
        float sum = s->sum[row], mine[VL] = {1}, other[VL];
        if (a->sinks && sum != 0) {
            float sink = a->sinks[row % a->group], max = s->max[row] > sink ? s->max[row] : sink;
            vf_store(mine, vf_exp(vf_sub(vf_set1(s->max[row]), vf_set1(max))));
            vf_store(other, vf_exp(vf_sub(vf_set1(sink), vf_set1(max))));
            sum = sum * mine[0] + other[0];
        }
        float *acc = s->acc + row * s->dims;
        for (int i = 0; i < s->dims; i += VL) {
            vf x = vf_div(vf_mul(vf_load(acc + i), vf_set1(mine[0])), vf_set1(sum));
            vf_store(acc + i, sum == 0 ? vf_zero() : x);
        }
        if (a->kv_type == OX_KV_Q4_0)
            ox_rotate(acc, (size_t)s->dims);
        memcpy(out, acc, (size_t)a->v_dim * 4);
    }
}

INLINE void attend(const ox_attn_args *a, const int type)
{
    attn s = begin(a);
    float *all = a->scratch, *one = all + ox_attn_state((size_t)s.rows, (size_t)a->v_dim);
    pack_queries(&s);
    int64_t first = ox_attn_first(a, a->pos) / OX_ATTN_SPAN, end = ox_attn_end(a, a->pos + a->n_queries - 1);
    int64_t span = a->span >= 0 ? a->span : first;
    use_state(&s, a->span >= 0 ? a->state : all);
    for (;; span++) { /* one call: it is inlined */
        attend_span(&s, span, type);
        if (a->span >= 0)
            return;
        if (span > first) {
            use_state(&s, all);
            merge_state(&s, one);
        }
        if ((span + 1) * OX_ATTN_SPAN >= end)
            break;
        use_state(&s, one);
    }
    finish(&s);
}

/* Functions of their own: the compiler takes long over one of all of them. */
APART void attend_q8_0(const ox_attn_args *a) { attend(a, OX_KV_Q8_0); }
APART void attend_q4_0(const ox_attn_args *a) { attend(a, OX_KV_Q4_0); }
APART void attend_f16(const ox_attn_args *a) { attend(a, OX_KV_F16); }
APART void attend_f32(const ox_attn_args *a) { attend(a, OX_KV_F32); }

static void attention(const ox_attn_args *a)
{
    if (a->kv_type == OX_KV_Q8_0)
        attend_q8_0(a);
    else if (a->kv_type == OX_KV_Q4_0)
        attend_q4_0(a);
    else if (a->kv_type == OX_KV_F16)
        attend_f16(a);
    else
        attend_f32(a);
}

static void attention_merge(const ox_attn_args *a, int64_t n)
{
    attn s = begin(a);
    use_state(&s, a->state);
    for (int64_t i = 1; i < n; i++)
        merge_state(&s, a->state + (size_t)i * ox_attn_state((size_t)s.rows, (size_t)a->v_dim));
    finish(&s);
}
