/* Operations on single rows. Sums run in VL lanes and are folded by vf_sum in one fixed order. */
#include <math.h>

/* Cody-Waite reduction to |r| <= ln(2)/2, then the Taylor polynomial of degree 7 (error 3e-9 relative there), scaled by
 * 2^n. Below -87.3 the result is zero, so that a masked score contributes exactly nothing. NaN stays NaN: the bound is
 * the first operand of min and max, which return the second when one is NaN. */
INLINE vf vf_exp(vf x)
{
    vf bounded = vf_min(vf_set1(88.0f), vf_max(vf_set1(-87.3f), x));
    vf n = vf_round(vf_mul(bounded, vf_set1(1.44269504f)));
    vf r = vf_fnma(n, vf_set1(0.693359375f), bounded);
    r = vf_fnma(n, vf_set1(-2.12194440e-4f), r);
    vf p = vf_fma(r, vf_set1(1.0f / 5040), vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_zero_below(vf_scale_exp2(p, n), x, vf_set1(-87.3f));
}

/* The last n % VL values of a row, padded: reads and writes nothing beyond the row. */
INLINE vf load_tail(const float *x, int64_t n, float fill)
{
    float part[VL];
    for (int r = 0; r < VL; r++)
        part[r] = r < n ? x[r] : fill;
    return vf_load(part);
}

INLINE vf load_part(const float *x, int64_t n, float fill) { return n >= VL ? vf_load(x) : load_tail(x, n, fill); }

static void rms_norm(const float *x, const float *w, float *y, int64_t n, float eps)
{
    vf sum = vf_zero();
    for (int64_t i = 0; i < n; i += VL) {
        vf v = load_part(x + i, n - i, 0);
        sum = vf_fma(v, v, sum);
    }
    vf scale = vf_set1(1 / sqrtf(vf_sum(sum) / (float)n + eps));
    for (int64_t i = 0; i < n; i += VL)
        store_rows(y + i, vf_mul(vf_mul(load_part(x + i, n - i, 0), scale), load_part(w + i, n - i, 0)), n - i, 0);
}

static void add(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        store_rows(y + i, load_part(x + i, n - i, 0), n - i, 1);
}

static void add_scaled(const float *x, float a, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        store_rows(y + i, vf_fma(load_part(x + i, n - i, 0), vf_set1(a), load_part(y + i, n - i, 0)), n - i, 0);
}

static void swiglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf g = load_part(gate + i, n - i, 0), e = vf_exp(vf_sub(vf_zero(), g));
        store_rows(y + i, vf_mul(vf_div(g, vf_add(vf_set1(1), e)), load_part(up + i, n - i, 0)), n - i, 0);
    }
}

static void softmax(float *x, int64_t n)
{
    vf max = vf_set1(-INFINITY), sum = vf_zero();
    for (int64_t i = 0; i < n; i += VL)
        max = vf_max(max, load_part(x + i, n - i, -INFINITY));
    max = vf_set1(vf_reduce_max(max));
    for (int64_t i = 0; i < n; i += VL) {
        vf p = vf_exp(vf_sub(load_part(x + i, n - i, -INFINITY), max));
        sum = vf_add(sum, p);
        store_rows(x + i, p, n - i, 0);
    }
    vf total = vf_set1(vf_sum(sum));
    for (int64_t i = 0; i < n; i += VL)
        store_rows(x + i, vf_div(load_part(x + i, n - i, 0), total), n - i, 0);
}

static void rope_neox(float *x, const float *cos_sin, int64_t n_rot)
{
    int64_t h = n_rot / 2;
    for (int64_t i = 0; i < h; i += VL) {
        vf a = load_part(x + i, h - i, 0), b = load_part(x + h + i, h - i, 0);
        vf c = load_part(cos_sin + i, h - i, 0), s = load_part(cos_sin + h + i, h - i, 0);
        store_rows(x + i, vf_sub(vf_mul(a, c), vf_mul(b, s)), h - i, 0);
        store_rows(x + h + i, vf_add(vf_mul(a, s), vf_mul(b, c)), h - i, 0);
    }
}
