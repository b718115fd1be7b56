/* The gated delta rule, that with a change of rank one, and what goes into it and comes out of it; ox_kernels.h says
 * what each is. */
#include <math.h>
#include "scalar.h"

static double silu(double x) { return x / (1 + exp(-x)); }
static double softplus(double x) { return x > 20 ? x + exp(-x) : log1p(exp(x)); }

/* What the state is multiplied by at each token: the product of decays so far, which begins anew where it gets small.
 * Returns that of token t, and in `unit` what is left of it for the tokens behind. */
static double factor(const ox_delta_args *a, int64_t t, double *unit)
{
    float product = (float)*unit * a->decay[(size_t)t * a->decay_stride];
    *unit = product >= OX_DELTA_LEAST ? product : 1;
    return product;
}

/* One token of one column, whose state is unit times s[0], s[16], s[32] ... */
static void advance(const ox_delta_args *a, int64_t t, int64_t column, float *s, double *unit)
{
    const float *q = a->q + (size_t)t * a->q_stride, *k = a->k + (size_t)t * a->k_stride;
    double kept = factor(a, t, unit), known = 0, y = 0;
    for (int64_t i = 0; i < a->k_dim; i++)
        known += (double)s[16 * i] * k[i];
    double u = a->beta[(size_t)t * a->beta_stride] * (a->v[(size_t)t * a->v_stride + (size_t)column] - kept * known);
    for (int64_t i = 0; i < a->k_dim; i++) {
        s[16 * i] = (float)(kept / *unit * s[16 * i] + k[i] * (u / *unit));
        y += (double)s[16 * i] * q[i];
    }
    a->y[(size_t)t * a->y_stride + (size_t)column] = (float)(*unit * y);
}

void ox_delta(const ox_delta_args *a)
{
    size_t n = ox_delta_state((size_t)a->k_dim, (size_t)a->v_dim);
    double unit = 1;
    for (size_t i = 0; i < n; i++)
        a->write[i] = a->read ? a->read[i] : 0;
    for (int64_t column = 0; column < a->v_dim; column++) {
        unit = a->read ? a->read[n - 16] : 1;
        for (int64_t t = 0; t < a->n_tokens; t++)
            advance(a, t, column, a->write + column / 16 * 16 * a->k_dim + column % 16, &unit);
    }
    a->write[n - 16] = (float)unit;
}

/* One token of one column, whose state is s[0], s[16], s[32] ... */
static void transform(const ox_dplr_args *a, int64_t t, int64_t column, float *s)
{
    size_t at = (size_t)t * a->k_stride;
    double v = a->v[(size_t)t * a->v_stride + (size_t)column], seen = 0, y = 0;
    for (int64_t i = 0; i < a->k_dim; i++)
        seen += (double)s[16 * i] * a->b[at + (size_t)i];
    for (int64_t i = 0; i < a->k_dim; i++) {
        size_t j = at + (size_t)i;
        s[16 * i] = (float)((double)a->w[j] * s[16 * i] + a->a[j] * seen + a->k[j] * v);
        y += (double)s[16 * i] * a->q[j];
    }
    a->y[(size_t)t * a->y_stride + (size_t)column] = (float)y;
}

void ox_dplr(const ox_dplr_args *a)
{
    size_t n = ox_scan_state((size_t)a->v_dim, (size_t)a->k_dim);
    for (size_t i = 0; i < n; i++)
        a->write[i] = a->read ? a->read[i] : 0;
    for (int64_t column = 0; column < a->v_dim; column++)
        for (int64_t t = 0; t < a->n_tokens; t++)
            transform(a, t, column, a->write + column / 16 * 16 * a->k_dim + column % 16);
}

void ox_bounded_decay(const float *x, const float *bias, float a, float c, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)exp(c / (1 + exp(-a * ((double)x[i] + bias[i]))));
}

void ox_decay(const float *x, const float *bias, const float *a, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)exp(a[i] * softplus((double)x[i] + bias[i]));
}

void ox_l2_norm(const float *x, float *y, int64_t n, float eps, float scale)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    double factor = scale / sqrt(sum + (double)eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)(x[i] * factor);
}

void ox_gated_norm(const float *x, const float *z, const float *w, float *y, int64_t n, float eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    double factor = 1 / sqrt(sum / (double)n + (double)eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)(x[i] * factor * w[i] * silu(z[i]));
}
