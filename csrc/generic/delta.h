/* The gated delta rule, and what goes into it and comes out of it. Lane = column of the state: no sum is horizontal.
 *
 * All tokens of a call pass one tile of the state, DELTA_PANELS panels of columns, which stays in the nearest cache. A
 * token's sums over the old state are made while the token before changes it, so that each value is loaded and stored
 * once a token; what happens to it is the same whether the two tokens come in one call or in two. Included after
 * rows.h. */

/* Where vector j of row i of a tile lies: panels follow each other, each of n rows. */
INLINE int64_t delta_at(int64_t i, int j, int64_t n) { return (j / NV * n + i) * 16 + j % NV * VL; }

/* S^T k of a tile; s NULL: zeros. */
INLINE void delta_known(const float *s, const float *k, int64_t n, vf *known, const int J)
{
    UNROLL for (int j = 0; j < J; j++)
        known[j] = vf_zero();
    for (int64_t i = 0; s && i < n; i++) {
        vf ki = vf_set1(k[i]);
        UNROLL for (int j = 0; j < J; j++)
            known[j] = vf_fma(vf_load(s + delta_at(i, j, n)), ki, known[j]);
    }
}

/* One token changes a tile: out = decay s + k u^T, y = out^T q and, unless it is the last, known = out^T next. */
INLINE void delta_token(const float *s, float *out, const float *q, const float *k, const float *next, int64_t n, vf decay,
                        const vf *u, vf *y, vf *known, int stream, const int last, const int J)
{
    UNROLL for (int j = 0; j < J; j++)
        y[j] = known[j] = vf_zero();
    for (int64_t i = 0; i < n; i++) {
        vf ki = vf_set1(k[i]), qi = vf_set1(q[i]), ni = vf_set1(next[i]);
        UNROLL for (int j = 0; j < J; j++) {
            int64_t at = delta_at(i, j, n);
            vf x = vf_fma(ki, u[j], vf_mul(decay, s ? vf_load(s + at) : vf_zero()));
            y[j] = vf_fma(x, qi, y[j]);
            if (!last)
                known[j] = vf_fma(x, ni, known[j]);
            if (stream)
                vf_stream(out + at, x);
            else
                vf_store(out + at, x);
        }
    }
}

/* All tokens pass the tile of the columns c.. */
INLINE void delta_tile(const ox_delta_args *a, int64_t c, const int J)
{
    const float *q = a->q, *k = a->k, *s = a->read ? a->read + c * a->k_dim : NULL;
    float *out = a->write + c * a->k_dim;
    vf known[DELTA_PANELS * NV], u[DELTA_PANELS * NV], y[DELTA_PANELS * NV];
    delta_known(s, k, a->k_dim, known, J);
    for (int64_t t = 0; t < a->n_tokens; t++, q += a->q_stride, k += a->k_stride, s = out) {
        vf decay = vf_set1(a->decay[(size_t)t * a->decay_stride]), beta = vf_set1(a->beta[(size_t)t * a->beta_stride]);
        UNROLL for (int j = 0; j < J; j++) {
            int64_t column = c + j * VL;
            vf v = load_part(a->v + (size_t)t * a->v_stride + (size_t)column, a->v_dim - column, 0);
            u[j] = vf_mul(beta, vf_fnma(decay, known[j], v));
        }
        if (t + 1 < a->n_tokens)
            delta_token(s, out, q, k, k + a->k_stride, a->k_dim, decay, u, y, known, 0, 0, J);
        else if (a->stream)
            delta_token(s, out, q, k, k, a->k_dim, decay, u, y, known, 1, 1, J);
        else
            delta_token(s, out, q, k, k, a->k_dim, decay, u, y, known, 0, 1, J);
        UNROLL for (int j = 0; j < J; j++) {
            int64_t column = c + j * VL;
            store_rows(a->y + (size_t)t * a->y_stride + (size_t)column, y[j], a->v_dim - column, 0);
        }
    }
}

static void delta(const ox_delta_args *args)
{
    const ox_delta_args copied = *args, *a = &copied; /* which no store can change */
    int64_t c = 0;
    for (; c + 16 * (DELTA_PANELS - 1) < a->v_dim; c += 16 * DELTA_PANELS)
        delta_tile(a, c, DELTA_PANELS * NV);
    for (; c < a->v_dim; c += 16)
        delta_tile(a, c, NV);
    if (a->stream)
        vf_fence();
}

static void decay(const float *x, const float *bias, const float *a, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf step = vf_softplus(vf_add(load_part(x + i, n - i, 0), load_part(bias + i, n - i, 0)));
        store_rows(y + i, vf_exp(vf_mul(step, load_part(a + i, n - i, 0))), n - i, 0);
    }
}

INLINE float squares(const float *x, int64_t n)
{
    vf sum = vf_zero();
    for (int64_t i = 0; i < n; i += VL) {
        vf v = load_part(x + i, n - i, 0);
        sum = vf_fma(v, v, sum);
    }
    return vf_sum(sum);
}

static void l2_norm(const float *x, float *y, int64_t n, float eps, float scale)
{
    vf factor = vf_set1(scale / sqrtf(squares(x, n) + eps));
    for (int64_t i = 0; i < n; i += VL)
        store_rows(y + i, vf_mul(load_part(x + i, n - i, 0), factor), n - i, 0);
}

static void gated_norm(const float *x, const float *z, const float *w, float *y, int64_t n, float eps)
{
    vf factor = vf_set1(1 / sqrtf(squares(x, n) / (float)n + eps));
    for (int64_t i = 0; i < n; i += VL) {
        vf gate = load_part(z + i, n - i, 0);
        vf normed = vf_mul(vf_mul(load_part(x + i, n - i, 0), factor), load_part(w + i, n - i, 0));
        store_rows(y + i, vf_mul(normed, vf_times_sigmoid(gate, gate)), n - i, 0);
    }
}
