/* Attention over block tables. Keys lie in panels of 16 tokens, so that scores are lanes and need no horizontal sum;
 * values lie in rows, so that outputs are lanes. All heads of a group share each load of a key or value. */

typedef struct {
    const ox_attn_args *a;
    float *scores, *acc, *max, *sum; /* [rows][64], [rows][dims], [rows], [rows]; row = query * group + head */
    int rows, dims;
} attn;

INLINE const uint8_t *kv_block(const ox_attn_args *a, const void *slab, size_t bytes, int64_t key)
{
    return (const uint8_t *)slab + (size_t)a->blocks[key / a->block_tokens] * bytes;
}

INLINE const float *query(const ox_attn_args *a, int row)
{
    return a->q + (size_t)(row / a->group) * a->q_stride + (size_t)(row % a->group) * (size_t)a->head_dim;
}

INLINE vf kv_load(const void *p, size_t i, const int f16)
{
    return f16 ? vf_from_half((const uint16_t *)p + i) : vf_load((const float *)p + i);
}

/* Scores of R rows against one panel of 16 keys. */
INLINE void score_rows(const attn *s, const void *panel, int row, int key, const int R, const int f16)
{
    const float *q[8];
    vf acc[8][NV];
    UNROLL for (int r = 0; r < R; r++) {
        q[r] = query(s->a, row + r);
        UNROLL for (int v = 0; v < NV; v++)
            acc[r][v] = vf_zero();
    }
    for (int i = 0; i < s->a->head_dim; i++)
        UNROLL for (int v = 0; v < NV; v++) {
            vf k = kv_load(panel, (size_t)i * 16 + (size_t)v * VL, f16);
            UNROLL for (int r = 0; r < R; r++)
                acc[r][v] = vf_fma(k, vf_set1(q[r][i]), acc[r][v]);
        }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < NV; v++)
            vf_store(s->scores + (row + r) * OX_ATTN_TILE + key + v * VL, vf_mul(acc[r][v], vf_set1(s->a->scale)));
}

INLINE void score_tile(const attn *s, int64_t tile, int n_keys, const int f16)
{
    const ox_attn_args *a = s->a;
    for (int key = 0; key < n_keys; key += 16) {
        size_t in_block = (size_t)((tile + key) % a->block_tokens);
        const void *panel = kv_block(a, a->k, a->k_block_bytes, tile + key)
                            + in_block * (size_t)a->head_dim * (f16 ? 2 : 4);
        int row = 0;
        for (; row + SCORE_ROWS <= s->rows; row += SCORE_ROWS)
            score_rows(s, panel, row, key, SCORE_ROWS, f16);
        for (; row + 2 <= s->rows; row += 2)
            score_rows(s, panel, row, key, 2, f16);
        for (; row < s->rows; row++)
            score_rows(s, panel, row, key, 1, f16);
    }
}

/* Online softmax of one row over keys [from, to) of a tile: scores become weights, older sums are scaled down. */
INLINE void soften(const attn *s, int row, int from, int to)
{
    float *x = s->scores + row * OX_ATTN_TILE, *acc = s->acc + row * s->dims;
    for (int i = 0; i < OX_ATTN_TILE; i++)
        if (i < from || i >= to)
            x[i] = -INFINITY;
    vf max = vf_set1(s->max[row]), sum = vf_zero();
    for (int i = 0; i < OX_ATTN_TILE; i += VL)
        max = vf_max(max, vf_load(x + i));
    float new_max = vf_reduce_max(max);
    float correction[VL];
    vf_store(correction, vf_exp(vf_sub(vf_set1(s->max[row]), vf_set1(new_max))));
    for (int i = 0; i < OX_ATTN_TILE; i += VL) {
        vf p = vf_exp(vf_sub(vf_load(x + i), vf_set1(new_max)));
        sum = vf_add(sum, p);
        vf_store(x + i, p);
    }
    s->sum[row] = s->sum[row] * correction[0] + vf_sum(sum);
    s->max[row] = new_max;
    for (int i = 0; i < s->dims; i += VL)
        vf_store(acc + i, vf_mul(vf_load(acc + i), vf_set1(correction[0])));
}

/* acc[row..row+R) += weights x values of keys [from, to), D vectors of output dimensions at a time. */
INLINE void add_values(const attn *s, int64_t tile, int row, int from, int to, int dim, const int R, const int D, const int f16)
{
    const ox_attn_args *a = s->a;
    vf acc[4][4];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int d = 0; d < D; d++)
            acc[r][d] = vf_load(s->acc + (row + r) * s->dims + dim + d * VL);
    for (int key = from; key < to;) {
        const uint8_t *block = kv_block(a, a->v, a->v_block_bytes, tile + key);
        int in_block = (int)((tile + key) % a->block_tokens), end = key + a->block_tokens - in_block;
        for (end = end < to ? end : to; key < end; key++, in_block++) {
            size_t at = (size_t)in_block * (size_t)s->dims + (size_t)dim;
            UNROLL for (int d = 0; d < D; d++) {
                vf v = kv_load(block, at + (size_t)(d * VL), f16);
                UNROLL for (int r = 0; r < R; r++)
                    acc[r][d] = vf_fma(v, vf_set1(s->scores[(row + r) * OX_ATTN_TILE + key]), acc[r][d]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int d = 0; d < D; d++)
            vf_store(s->acc + (row + r) * s->dims + dim + d * VL, acc[r][d]);
}

INLINE void values_of(const attn *s, int64_t tile, int row, int rows, int from, int to, const int f16)
{
    for (int end = row + rows; row < end;) {
        int r = end - row >= VALUE_ROWS ? VALUE_ROWS : 1, dim = 0;
        for (; dim + 4 * VL <= s->dims; dim += 4 * VL)
            if (r == 1)
                add_values(s, tile, row, from, to, dim, 1, 4, f16);
            else
                add_values(s, tile, row, from, to, dim, VALUE_ROWS, 4, f16);
        for (; dim < s->dims; dim += VL)
            if (r == 1)
                add_values(s, tile, row, from, to, dim, 1, 1, f16);
            else
                add_values(s, tile, row, from, to, dim, VALUE_ROWS, 1, f16);
        row += r;
    }
}

/* One tile of 64 keys. Where every query sees all of it, rows share the loads of values; on the edges (the diagonal,
 * the start of a window) each query takes its own range, so that no row ever touches a value it must not see. */
INLINE void attend_tile(const attn *s, int64_t tile, const int f16)
{
    const ox_attn_args *a = s->a;
    int64_t last = a->pos + a->n_queries - 1;
    score_tile(s, tile, (int)(last + 1 - tile < OX_ATTN_TILE ? last + 1 - tile : OX_ATTN_TILE), f16);
    int64_t last_first = a->window > 0 && last + 1 > a->window ? last + 1 - a->window : 0;
    int whole = a->pos + 1 >= tile + OX_ATTN_TILE && last_first <= tile;
    for (int i = 0; i < a->n_queries; i++) {
        int64_t pos = a->pos + i, low = a->window > 0 && pos + 1 > a->window ? pos + 1 - a->window : 0;
        int from = low > tile ? (int)(low - tile) : 0, to = pos + 1 - tile < OX_ATTN_TILE ? (int)(pos + 1 - tile) : OX_ATTN_TILE;
        if (from >= to)
            continue; /* the tile lies outside this query's range */
        for (int h = 0; h < a->group; h++)
            soften(s, i * a->group + h, from, to);
        if (!whole)
            values_of(s, tile, i * a->group, a->group, from, to, f16);
    }
    if (whole)
        values_of(s, tile, 0, s->rows, 0, OX_ATTN_TILE, f16);
}

INLINE void attend(const ox_attn_args *a, const int f16)
{
    int rows = a->n_queries * a->group, dims = (a->head_dim + 15) / 16 * 16;
    float *scores = a->scratch, *acc = scores + rows * OX_ATTN_TILE, *max = acc + rows * dims;
    attn s = {a, scores, acc, max, max + rows, rows, dims};
    for (int i = 0; i < rows * dims; i += VL)
        vf_store(acc + i, vf_zero());
    for (int r = 0; r < rows; r++) {
        max[r] = -INFINITY;
        s.sum[r] = 0;
    }
    int64_t first = a->window > 0 && a->pos + 1 > a->window ? a->pos + 1 - a->window : 0;
    for (int64_t tile = first / OX_ATTN_TILE * OX_ATTN_TILE; tile < a->pos + a->n_queries; tile += OX_ATTN_TILE)
        attend_tile(&s, tile, f16);
    for (int r = 0; r < rows; r++) {
        float *out = a->out + (size_t)(r / a->group) * a->out_stride + (size_t)(r % a->group) * (size_t)a->head_dim;
        for (int i = 0; i < a->head_dim; i += VL)
            store_rows(out + i, vf_div(vf_load(acc + r * dims + i), vf_set1(s.sum[r])), a->head_dim - i, 0);
    }
}

static void attention(const ox_attn_args *a)
{
    if (a->kv_f16)
        attend(a, 1);
    else
        attend(a, 0);
}
