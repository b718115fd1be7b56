/* Operations on single rows. Their sums have one order on every tier: value i goes to lane i % 16, in ascending order,
 * and the lanes are folded in halves, j + 8 to j, j + 4, j + 2 and j + 1. */
#include <math.h>

/* The sum of 16 lanes, which are NV vectors. */
INLINE float sum_lanes(const vf *lanes)
{
    vf s[NV];
    UNROLL for (int v = 0; v < NV; v++)
        s[v] = lanes[v];
    UNROLL for (int n = NV / 2; n > 0; n /= 2)
        UNROLL for (int v = 0; v < n; v++)
            s[v] = vf_add(s[v], s[v + n]);
    return vf_sum(s[0]);
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

/* Runs `step`, which takes the vector v of the lanes from v * VL on and the place i of its first value, for a row: a
 * vector may lie behind the row's end, and adds nothing then. */
#define EACH_LANE(n, step)                                                              \
    do {                                                                                \
        int64_t first = 0;                                                              \
        for (; first + 16 <= (n); first += 16)                                          \
            UNROLL for (int v = 0; v < NV; v++) {                                       \
                const int64_t i = first + v * VL;                                       \
                step                                                                    \
            }                                                                           \
        UNROLL for (int v = 0; v < NV; v++) {                                           \
            const int64_t i = first + v * VL;                                           \
            if (i < (n)) {                                                              \
                step                                                                    \
            }                                                                           \
        }                                                                               \
    } while (0)

INLINE float squares(const float *x, int64_t n)
{
    vf sum[NV];
    UNROLL for (int v = 0; v < NV; v++)
        sum[v] = vf_zero();
    EACH_LANE(n, vf a = load_part(x + i, n - i, 0); sum[v] = vf_fma(a, a, sum[v]););
    return sum_lanes(sum);
}

static void rms_norm(const float *x, const float *w, float *y, int64_t n, float eps)
{
    vf scale = vf_set1(1 / sqrtf(squares(x, n) / (float)n + eps));
    for (int64_t i = 0; i < n; i += VL)
        store_rows(y + i, vf_mul(vf_mul(load_part(x + i, n - i, 0), scale), load_part(w + i, n - i, 0)), n - i, 0);
}

/* Without w it multiplies by one, without b it adds nothing. The mean fills the last vector: its lanes add nothing. */
static void layer_norm(const float *x, const float *w, const float *b, float *y, int64_t n, float eps)
{
    vf sum[NV], square[NV];
    UNROLL for (int v = 0; v < NV; v++)
        sum[v] = square[v] = vf_zero();
    EACH_LANE(n, sum[v] = vf_add(sum[v], load_part(x + i, n - i, 0)););
    float mean = sum_lanes(sum) / (float)n;
    EACH_LANE(n, vf a = vf_sub(load_part(x + i, n - i, mean), vf_set1(mean)); square[v] = vf_fma(a, a, square[v]););
    vf scale = vf_set1(1 / sqrtf(sum_lanes(square) / (float)n + eps));
    for (int64_t i = 0; i < n; i += VL) {
        vf v = vf_mul(vf_sub(load_part(x + i, n - i, mean), vf_set1(mean)), scale);
        if (w)
            v = vf_mul(v, load_part(w + i, n - i, 0));
        if (b)
            v = vf_add(v, load_part(b + i, n - i, 0));
        store_rows(y + i, v, n - i, 0);
    }
}

static void add(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        store_rows(y + i, load_part(x + i, n - i, 0), n - i, 1);
}

static void mul(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        store_rows(y + i, vf_mul(load_part(y + i, n - i, 0), load_part(x + i, n - i, 0)), n - i, 0);
}

static void add_scaled(const float *x, float a, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        store_rows(y + i, vf_fma(load_part(x + i, n - i, 0), vf_set1(a), load_part(y + i, n - i, 0)), n - i, 0);
}

static void softmax(float *x, int64_t n)
{
    vf max = vf_set1(-INFINITY), sum[NV];
    for (int64_t i = 0; i < n; i += VL)
        max = vf_max(max, load_part(x + i, n - i, -INFINITY));
    max = vf_set1(vf_reduce_max(max));
    UNROLL for (int v = 0; v < NV; v++)
        sum[v] = vf_zero();
    EACH_LANE(n, vf p = vf_exp(vf_sub(load_part(x + i, n - i, -INFINITY), max)); sum[v] = vf_add(sum[v], p);
              store_rows(x + i, p, n - i, 0););
    vf total = vf_set1(sum_lanes(sum));
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
