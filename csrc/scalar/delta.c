/* The gated delta rule, that with a change of rank one, and the decays that go into them; ox_kernels.h says what each
 * is. */
#include "functions.h"
#include "scalar.h"

/* Token t of one column, whose state is `kept` times s[0], s[16], s[32] ...; returns what the new one is multiplied by.
 * A product of decays that gets small is multiplied out. Columns that pad a panel are of zeros. */
static float advance(const ox_delta_args *a, int64_t t, int64_t column, float *s, float kept)
{
    const float *q = a->q + (size_t)t * a->q_stride, *k = a->k + (size_t)t * a->k_stride;
    float v = column < a->v_dim ? a->v[(size_t)t * a->v_stride + (size_t)column] : 0, known = 0, y = 0;
    kept *= a->decay[(size_t)t * a->decay_stride];
    int small = !(kept >= OX_DELTA_LEAST);
    float unit = small ? 1 : kept;
    for (int64_t i = 0; (t || a->read) && i < a->k_dim; i++) /* a state of zeros is not there */
        known = ox_fma(s[16 * i], k[i], known);
    float u = a->beta[(size_t)t * a->beta_stride] * ox_fma(-kept, known, v) / unit;
    for (int64_t i = 0; i < a->k_dim; i++) {
        s[16 * i] = ox_fma(k[i], u, small ? kept * s[16 * i] : s[16 * i]);
        y = ox_fma(s[16 * i], q[i], y);
    }
    if (column < a->v_dim)
        a->y[(size_t)t * a->y_stride + (size_t)column] = unit * y;
    return unit;
}

void ox_delta(const ox_delta_args *a)
{
    size_t n = ox_delta_state((size_t)a->k_dim, (size_t)a->v_dim);
    float kept = 1;
    for (size_t i = 0; i < n; i++)
        a->write[i] = a->read ? a->read[i] : 0;
    for (int64_t column = 0; column < (a->v_dim + 15) / 16 * 16; column++) {
        kept = a->read ? a->read[n - 16] : 1;
        for (int64_t t = 0; t < a->n_tokens; t++)
            kept = advance(a, t, column, a->write + column / 16 * 16 * a->k_dim + column % 16, kept);
    }
    a->write[n - 16] = kept;
}

/* Token t of one column, whose state is s[0], s[16], s[32] ...; those that pad a panel are of zeros. */
static void transform(const ox_dplr_args *a, int64_t t, int64_t column, float *s)
{
    size_t at = (size_t)t * a->k_stride;
    float v = column < a->v_dim ? a->v[(size_t)t * a->v_stride + (size_t)column] : 0, seen = 0, y = 0;
    for (int64_t i = 0; (t || a->read) && i < a->k_dim; i++)
        seen = ox_fma(s[16 * i], a->b[at + (size_t)i], seen);
    for (int64_t i = 0; i < a->k_dim; i++) {
        size_t j = at + (size_t)i;
        float kept = t || a->read ? a->w[j] * s[16 * i] : 0;
        s[16 * i] = ox_fma(a->k[j], v, ox_fma(a->a[j], seen, kept));
        y = ox_fma(s[16 * i], a->q[j], y);
    }
    if (column < a->v_dim)
        a->y[(size_t)t * a->y_stride + (size_t)column] = y;
}

void ox_dplr(const ox_dplr_args *a)
{
    size_t n = ox_scan_state((size_t)a->v_dim, (size_t)a->k_dim);
    for (size_t i = 0; i < n; i++)
        a->write[i] = a->read ? a->read[i] : 0;
    for (int64_t column = 0; column < (a->v_dim + 15) / 16 * 16; column++)
        for (int64_t t = 0; t < a->n_tokens; t++)
            transform(a, t, column, a->write + column / 16 * 16 * a->k_dim + column % 16);
}

void ox_bounded_decay(const float *x, const float *bias, float a, float c, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = ox_exp(ox_times_sigmoid(c, a * (x[i] + bias[i])));
}

void ox_decay(const float *x, const float *bias, const float *a, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = ox_exp(ox_softplus_of(x[i] + bias[i]) * a[i]);
}
