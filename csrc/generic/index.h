/* Scores by which keys are chosen, by the products of attention; included after attention.h. */

/* Scores of a tile's first n keys for one query: each head's, or weighted and summed in ascending order of heads. */
INLINE void put_scores(const attn *s, int query, int64_t tile, int n, const float *weights, size_t stride)
{
    const ox_attn_args *a = s->a;
    const float *x = s->scores + query * a->group * OX_ATTN_TILE;
    const float *w = weights ? weights + (size_t)query * stride : NULL;
    float *out = a->out + (size_t)(weights ? query : query * a->group) * a->out_stride + tile;
    for (int i = 0; i < n; i += VL)
        if (weights) {
            vf sum = vf_zero();
            for (int h = 0; h < a->group; h++) /* NaN stays: the larger is the second one then */
                sum = vf_fma(vf_max(vf_zero(), vf_load(x + h * OX_ATTN_TILE + i)), vf_set1(w[h]), sum);
            store_rows(out + i, sum, n - i, 0);
        } else
            for (int h = 0; h < a->group; h++)
                store_rows(out + (size_t)h * a->out_stride + i, vf_load(x + h * OX_ATTN_TILE + i), n - i, 0);
}

INLINE void index_tile(attn *s, int64_t tile, int64_t end, const float *weights, size_t stride, const int type)
{
    const ox_attn_args *a = s->a;
    int n_keys = end - tile < OX_ATTN_TILE ? (int)(end - tile) : OX_ATTN_TILE;
    find_panels(s, tile, end);
    if (type == OX_KV_F16 && s->rows >= SHARED_ROWS) {
        convert_tile(s, n_keys);
        score_tile_of_type(s, n_keys, CONVERTED);
    } else
        score_tile_of_type(s, n_keys, type);
    for (int i = 0; i < a->n_queries; i++) {
        int64_t seen = ox_attn_end(a, a->pos + i) - tile;
        put_scores(s, i, tile, seen < n_keys ? (int)seen : n_keys, weights, stride);
    }
}

INLINE void index_keys(const ox_attn_args *args, const float *weights, size_t stride, const int type)
{
    ox_attn_args a = *args;
    a.v = a.k; /* of no width */
    a.v_dim = 0;
    attn s = begin(&a);
    pack_queries(&s);
    int64_t end = ox_attn_end(&a, a.pos + a.n_queries - 1);
    for (int64_t tile = a.span * OX_ATTN_SPAN; tile < end; tile += OX_ATTN_TILE)
        index_tile(&s, tile, end, weights, stride, type);
}

static void index_scores(const ox_attn_args *a, const float *weights, size_t stride)
{
    if (a->kv_type == OX_KV_Q8_0)
        index_keys(a, weights, stride, OX_KV_Q8_0);
    else if (a->kv_type == OX_KV_Q4_0)
        index_keys(a, weights, stride, OX_KV_Q4_0);
    else if (a->kv_type == OX_KV_F16)
        index_keys(a, weights, stride, OX_KV_F16);
    else
        index_keys(a, weights, stride, OX_KV_F32);
}
