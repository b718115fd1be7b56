/* What bends a row: activations, gated ones, caps and bounds. Included after rows.h. */

/* A row changed in place, vector by vector: `result` is an expression of the vector v. */
#define IN_PLACE(x, n, result)                     \
    for (int64_t i = 0; i < (n); i += VL) {        \
        vf v = load_part((x) + i, (n) - i, 0);     \
        store_rows((x) + i, (result), (n) - i, 0); \
    }

static void scale(float *x, float a, int64_t n) { IN_PLACE(x, n, vf_mul(v, vf_set1(a))) }

static void softcap(float *x, float cap, int64_t n)
{
    IN_PLACE(x, n, vf_mul(vf_set1(cap), vf_tanh(vf_mul(v, vf_set1(1 / cap)))))
}

INLINE vf bounded(vf x, float limit) { return vf_min(vf_set1(limit), vf_max(vf_set1(-limit), x)); }

static void clamp(float *x, float limit, int64_t n) { IN_PLACE(x, n, bounded(v, limit)) }

static void silu(float *x, int64_t n) { IN_PLACE(x, n, vf_times_sigmoid(v, v)) }

/* (1 + tanh(t)) / 2 is the sigmoid of 2 t, which loses no digits where t is negative. Here 2 t is
 * 2 sqrt(2 / pi) (x + 0.044715 x^3). */
INLINE vf vf_gelu(vf x)
{
    vf t = vf_mul(x, vf_fma(vf_mul(x, x), vf_set1(0.0713548163f), vf_set1(1.59576912f)));
    return vf_times_sigmoid(x, t);
}

static void gelu(float *x, int64_t n) { IN_PLACE(x, n, vf_gelu(v)) }

static void gelu_erf(float *x, int64_t n) { IN_PLACE(x, n, vf_mul(v, vf_normal(v))) }

static void relu(float *x, int64_t n) { IN_PLACE(x, n, vf_max(vf_zero(), v)) }

static void relu2(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf v = vf_max(vf_zero(), load_part(x + i, n - i, 0));
        store_rows(x + i, vf_mul(v, v), n - i, 0);
    }
}

/* Both branches, of which one is of zero: q (exp(e) - 1) + (beta - q) x, e = min(x, eps), has no difference of x. */
static void xielu(float *x, int64_t n, float p, float q, float beta, float eps)
{
    vf least = vf_set1(0x1p-149f), slope = vf_set1(beta - q);
    for (int64_t i = 0; i < n; i += VL) {
        vf v = load_part(x + i, n - i, 0), below = vf_min(vf_zero(), v), above = vf_max(vf_zero(), v);
        vf bent = vf_mul(vf_set1(q), vf_expm1(vf_min(vf_set1(eps), below)));
        bent = vf_sub(bent, vf_zero_below(bent, v, least)); /* nothing above zero */
        vf risen = vf_mul(vf_fma(vf_set1(p), above, vf_set1(beta)), above);
        store_rows(x + i, vf_add(vf_fma(slope, below, bent), risen), n - i, 0);
    }
}

static void sigmoid(float *x, int64_t n) { IN_PLACE(x, n, vf_times_sigmoid(vf_set1(1), v)) }

static void softplus(float *x, int64_t n) { IN_PLACE(x, n, vf_softplus(v)) }

static void swiglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf g = load_part(gate + i, n - i, 0);
        store_rows(y + i, vf_mul(vf_times_sigmoid(g, g), load_part(up + i, n - i, 0)), n - i, 0);
    }
}

static void geglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL)
        store_rows(y + i, vf_mul(vf_gelu(load_part(gate + i, n - i, 0)), load_part(up + i, n - i, 0)), n - i, 0);
}

static void geglu_erf(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf g = load_part(gate + i, n - i, 0);
        store_rows(y + i, vf_mul(vf_mul(g, vf_normal(g)), load_part(up + i, n - i, 0)), n - i, 0);
    }
}

static void reglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf g = vf_max(vf_zero(), load_part(gate + i, n - i, 0));
        store_rows(y + i, vf_mul(g, load_part(up + i, n - i, 0)), n - i, 0);
    }
}

static void swiglu_limited(const float *gate, const float *up, float *y, int64_t n, float limit)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf g = load_part(gate + i, n - i, 0), u = bounded(load_part(up + i, n - i, 0), limit);
        store_rows(y + i, vf_mul(vf_min(vf_set1(limit), vf_times_sigmoid(g, g)), u), n - i, 0);
    }
}

static void swiglu_oai(const float *gate, const float *up, float *y, int64_t n, float alpha, float limit)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf g = vf_min(vf_set1(limit), load_part(gate + i, n - i, 0)), u = bounded(load_part(up + i, n - i, 0), limit);
        store_rows(y + i, vf_mul(vf_times_sigmoid(g, vf_mul(vf_set1(alpha), g)), vf_add(u, vf_set1(1))), n - i, 0);
    }
}
