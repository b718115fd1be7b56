/* The gated delta rule, that with a change of rank one, and what goes into it and comes out of it. Lane = column of the
 * state: no sum is horizontal.
 *
 * All tokens of a call pass one tile of the state, DELTA_PANELS panels of columns, which stays in the nearest cache. A
 * token's sums over the old state are made while the token before changes it, so that each value is loaded and stored
 * once a token, and takes part in three products; what happens to it is the same whether the two tokens come in one
 * call or in two. Where panels lie 4 KiB apart, a load behind a store to the other panel waits for it: loads come
 * first. Included after rows.h. */

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

/* One token changes a tile: out = keep s + k u^T, y = out^T q and, unless it is the last, known = out^T next. The
 * factor is one and left out unless `scaled`. */
INLINE void delta_token(const float *s, float *out, const float *q, const float *k, const float *next, int64_t n,
                        vf keep, const vf *u, vf *y, vf *known, int stream, const int last, const int scaled,
                        const int J)
{
    UNROLL for (int j = 0; j < J; j++)
        y[j] = known[j] = vf_zero();
    for (int64_t i = 0; i < n; i++) {
        vf ki = vf_set1(k[i]), qi = vf_set1(q[i]), ni = vf_set1(next[i]), x[DELTA_PANELS * NV];
        UNROLL for (int j = 0; j < J; j += NV)
            if (last && s && s != out) /* of one token: the next tile's panels, while this one's are written */
                __builtin_prefetch(s + delta_at(i, j + J, n), 0, 2);
        UNROLL for (int j = 0; j < J; j++) {
            x[j] = s ? vf_load(s + delta_at(i, j, n)) : vf_zero();
            x[j] = vf_fma(ki, u[j], scaled ? vf_mul(keep, x[j]) : x[j]);
        }
        UNROLL for (int j = 0; j < J; j++) {
            y[j] = vf_fma(x[j], qi, y[j]);
            if (!last)
                known[j] = vf_fma(x[j], ni, known[j]);
            if (stream)
                vf_stream(out + delta_at(i, j, n), x[j]);
            else
                vf_store(out + delta_at(i, j, n), x[j]);
        }
    }
}

/* Token t of a tile whose columns begin with c; `kept` is the product of decays that its state lacks. */
INLINE void delta_step(const ox_delta_args *a, int64_t t, int64_t c, const float *s, float *out, float kept, vf *known,
                       const int last, const int scaled, const int J)
{
    const float *q = a->q + (size_t)t * a->q_stride, *k = a->k + (size_t)t * a->k_stride;
    const float *v = a->v + (size_t)t * a->v_stride;
    vf factor = vf_set1(kept), unit = vf_set1(scaled ? 1 : kept), beta = vf_set1(a->beta[(size_t)t * a->beta_stride]);
    vf u[DELTA_PANELS * NV], y[DELTA_PANELS * NV];
    UNROLL for (int j = 0; j < J; j++) {
        int64_t column = c + j * VL;
        u[j] = vf_mul(beta, vf_fnma(factor, known[j], load_part(v + column, a->v_dim - column, 0)));
        u[j] = vf_div(u[j], unit);
    }
    delta_token(s, out, q, k, last ? k : k + a->k_stride, a->k_dim, factor, u, y, known, last && a->stream, last,
                scaled, J);
    UNROLL for (int j = 0; j < J; j++) {
        int64_t column = c + j * VL;
        store_rows(a->y + (size_t)t * a->y_stride + (size_t)column, vf_mul(unit, y[j]), a->v_dim - column, 0);
    }
}

/* All tokens pass the tile of the columns c.. Returns what its state is multiplied by then. */
INLINE float delta_tile(const ox_delta_args *a, int64_t c, float kept, const int J)
{
    const float *s = a->read ? a->read + c * a->k_dim : NULL;
    float *out = a->write + c * a->k_dim;
    vf known[DELTA_PANELS * NV];
    delta_known(s, a->k, a->k_dim, known, J);
    for (int64_t t = 0; t < a->n_tokens; t++, s = out) {
        int last = t + 1 == a->n_tokens;
        kept *= a->decay[(size_t)t * a->decay_stride];
        if (!(kept >= OX_DELTA_LEAST)) {
            if (last)
                delta_step(a, t, c, s, out, kept, known, 1, 1, J);
            else
                delta_step(a, t, c, s, out, kept, known, 0, 1, J);
            kept = 1;
        } else if (last) {
            delta_step(a, t, c, s, out, kept, known, 1, 0, J);
        } else {
            delta_step(a, t, c, s, out, kept, known, 0, 0, J);
        }
    }
    return kept;
}

static void delta(const ox_delta_args *args)
{
    const ox_delta_args copied = *args, *a = &copied; /* which no store can change */
    int64_t c = 0, n = (int64_t)ox_delta_state((size_t)a->k_dim, (size_t)a->v_dim) - 16;
    float first = a->read ? a->read[n] : 1, kept = first;
    for (; c + 16 * (DELTA_PANELS - 1) < a->v_dim; c += 16 * DELTA_PANELS)
        kept = delta_tile(a, c, first, DELTA_PANELS * NV);
    for (; c < a->v_dim; c += 16)
        kept = delta_tile(a, c, first, NV);
    for (int i = 0; i < 16; i++)
        a->write[n + i] = i ? 0 : kept;
    if (a->stream)
        vf_fence();
}

/* Token t changes the panel of the columns c..: out = w s + a seen^T + k v^T, y = out^T q and, unless it is the last,
 * seen = out^T b of the next. One panel at a time: its sums and both vectors of each token stay in 16 registers. */
INLINE void dplr_token(const ox_dplr_args *a, int64_t t, int64_t c, const float *s, float *out, vf *seen,
                       const int last)
{
    int64_t n = a->k_dim, at = t * (int64_t)a->k_stride;
    const float *q = a->q + at, *w = a->w + at, *k = a->k + at, *p = a->a + at;
    const float *next = last ? q : a->b + at + a->k_stride;
    vf v[NV], y[NV], known[NV];
    UNROLL for (int j = 0; j < NV; j++) {
        v[j] = load_part(a->v + (size_t)t * a->v_stride + (size_t)(c + j * VL), a->v_dim - c - j * VL, 0);
        y[j] = known[j] = vf_zero();
    }
    for (int64_t i = 0; i < n; i++) {
        vf wi = vf_set1(w[i]), pi = vf_set1(p[i]), ki = vf_set1(k[i]), qi = vf_set1(q[i]), ni = vf_set1(next[i]);
        if (last && s && s != out) /* of one token: the next panel, while this one is written */
            __builtin_prefetch(s + (n + i) * 16, 0, 2);
        UNROLL for (int j = 0; j < NV; j++) {
            vf x = s ? vf_mul(wi, vf_load(s + i * 16 + j * VL)) : vf_zero();
            x = vf_fma(ki, v[j], vf_fma(pi, seen[j], x));
            y[j] = vf_fma(x, qi, y[j]);
            if (!last)
                known[j] = vf_fma(x, ni, known[j]);
            if (last && a->stream)
                vf_stream(out + i * 16 + j * VL, x);
            else
                vf_store(out + i * 16 + j * VL, x);
        }
    }
    UNROLL for (int j = 0; j < NV; j++) {
        seen[j] = known[j];
        store_rows(a->y + (size_t)t * a->y_stride + (size_t)(c + j * VL), y[j], a->v_dim - c - j * VL, 0);
    }
}

static void dplr(const ox_dplr_args *args)
{
    const ox_dplr_args copied = *args, *a = &copied; /* which no store can change */
    for (int64_t c = 0; c < a->v_dim; c += 16) {
        const float *s = a->read ? a->read + c * a->k_dim : NULL;
        float *out = a->write + c * a->k_dim;
        vf seen[NV];
        delta_known(s, a->b, a->k_dim, seen, NV);
        for (int64_t t = 0; t + 1 < a->n_tokens; t++, s = out)
            dplr_token(a, t, c, s, out, seen, 0);
        dplr_token(a, a->n_tokens - 1, c, s, out, seen, 1);
    }
    if (a->stream)
        vf_fence();
}

static void bounded_decay(const float *x, const float *bias, float a, float c, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf t = vf_mul(vf_set1(a), vf_add(load_part(x + i, n - i, 0), load_part(bias + i, n - i, 0)));
        store_rows(y + i, vf_exp(vf_times_sigmoid(vf_set1(c), t)), n - i, 0);
    }
}

static void decay(const float *x, const float *bias, const float *a, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf step = vf_softplus(vf_add(load_part(x + i, n - i, 0), load_part(bias + i, n - i, 0)));
        store_rows(y + i, vf_exp(vf_mul(step, load_part(a + i, n - i, 0))), n - i, 0);
    }
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
