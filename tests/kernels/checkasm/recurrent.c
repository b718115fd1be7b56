/* Short convolutions, selective scans and the delta rules. */
#include "check.h"

#define GAP 3 /* floats between the rows of inputs and outputs */

static int special_values; /* among the inputs */

static const float *random_floats(int64_t n, float scale)
{
    static float x[1 << 16];
    fill_floats(x, n, scale);
    if (special_values)
        fill_specials(x, n);
    return copy(x, (size_t)n * 4, 4);
}

/* Rows of n values, stride apart, with nothing behind the last. */
static const float *random_rows(int64_t rows, int64_t stride, int64_t n, float scale) { return random_floats((rows - 1) * stride + n, scale); }

/* Output rows that hold something already; what lies between them stays, and is compared too. */
static float *output_rows(int64_t rows, int64_t stride, int64_t n)
{
    float *y = place((size_t)((rows - 1) * stride + n) * 4, 4);
    for (int64_t i = 0; i < (rows - 1) * stride + n; i++)
        y[i] = 0.5f;
    return y;
}

static void check_conv(const ox_kernels *scalar, const ox_kernels *t, int64_t channels, int taps, int64_t tokens, int form)
{
    int64_t stride = channels + GAP, state = (taps - 1) * channels;
    ox_conv1d_args a = {.x_stride = (size_t)stride, .y_stride = (size_t)stride, .w_stride = (size_t)channels,
                        .n_tokens = tokens, .n_channels = channels, .n_taps = taps, .silu = form & 1};
    doing("conv1d of %d channels, %d taps, %d tokens, form %d", (int)channels, taps, (int)tokens, form);
    a.x = random_rows(tokens, stride, channels, 2);
    a.w = random_floats(taps * channels, 1);
    a.bias = form & 2 ? random_floats(channels, 1) : NULL;
    a.read = form & 4 ? random_floats(state, 2) : NULL;
    a.in_gate = form & 8 ? random_rows(tokens, stride, channels, 2) : NULL;
    a.out_gate = form & 8 ? random_rows(tokens, stride, channels, 2) : NULL;
    ox_conv1d_args b = a;
    a.y = output_rows(tokens, stride, channels), b.y = output_rows(tokens, stride, channels);
    a.write = place((size_t)state * 4, 4), b.write = place((size_t)state * 4, 4);
    CALL(scalar, conv1d)(&a);
    CALL(t, conv1d)(&b);
    expect_same(a.y, b.y, (tokens - 1) * stride + channels);
    expect_same(a.write, b.write, state);
    release();
}

/* Panels of a state, whose padding is zeros, as it stays. */
static float *random_state(int64_t channels, int64_t n_state, float scale)
{
    float *h = place(ox_scan_state((size_t)channels, (size_t)n_state) * 4, 64);
    for (int64_t i = 0; i < (channels + 15) / 16 * 16 * n_state; i++)
        h[i] = i / (16 * n_state) * 16 + i % 16 < channels ? scale * random_float() : 0;
    return h;
}

static const float *sealed(float *x) { seal(x); return x; }

/* Falls with time, in panels or of one head. */
static const float *random_decays(int64_t channels, int64_t n_state, int shared)
{
    float *a = shared ? place(4, 4) : random_state(channels, n_state, 2);
    for (int64_t i = 0; i < (shared ? 1 : (channels + 15) / 16 * 16 * n_state); i++)
        a[i] = shared ? -0.7f : -fabsf(a[i]);
    return sealed(a);
}

static void check_scan(const ox_kernels *scalar, const ox_kernels *t, int64_t channels, int n_state, int64_t tokens, int form)
{
    int shared = form & 1;
    int64_t stride = channels + GAP, own = shared ? 1 : channels, state = (int64_t)ox_scan_state((size_t)channels, (size_t)n_state);
    ox_scan_args a = {.x_stride = (size_t)stride, .z_stride = (size_t)stride, .y_stride = (size_t)stride,
                      .dt_stride = (size_t)(own + GAP), .bc_stride = (size_t)(n_state + GAP), .n_tokens = tokens,
                      .n_channels = channels, .n_state = n_state, .stream = form >> 4 & 1};
    doing("scan%d of %d channels, %d values, %d tokens, form %d", 1 + shared, (int)channels, n_state, (int)tokens, form);
    a.x = random_rows(tokens, stride, channels, 1);
    a.dt = random_rows(tokens, own + GAP, own, 3);
    a.b = random_rows(tokens, n_state + GAP, n_state, 1);
    a.c = random_rows(tokens, n_state + GAP, n_state, 1);
    a.a = random_decays(channels, n_state, shared);
    a.d = random_floats(own, 1);
    a.dt_bias = form & 2 ? random_floats(own, 1) : NULL;
    a.read = form & 4 ? sealed(random_state(channels, n_state, 4)) : NULL;
    a.z = form & 8 ? random_rows(tokens, stride, channels, 4) : NULL;
    ox_scan_args b = a;
    a.y = output_rows(tokens, stride, channels), b.y = output_rows(tokens, stride, channels);
    a.write = random_state(channels, n_state, 9), b.write = memcpy(random_state(channels, n_state, 0), a.write, (size_t)state * 4);
    (shared ? CALL(scalar, scan2) : CALL(scalar, scan1))(&a);
    (shared ? CALL(t, scan2) : CALL(t, scan1))(&b);
    expect_same(a.write, b.write, state);
    expect_same(a.y, b.y, (tokens - 1) * stride + channels);
    release();
}

/* Scaled to unit length, so that states stay bounded. */
static const float *random_units(int64_t rows, int64_t stride, int64_t n)
{
    float *x = place((size_t)((rows - 1) * stride + n) * 4, 4); /* before the numbers are drawn, whatever a compiler likes */
    memcpy(x, random_rows(rows, stride, n, 1), (size_t)((rows - 1) * stride + n) * 4);
    for (int64_t i = 0; i < rows; i++) {
        double sum = 1e-6;
        for (int64_t j = 0; j < n; j++)
            sum += (double)x[i * stride + j] * x[i * stride + j];
        for (int64_t j = 0; j < n; j++)
            x[i * stride + j] /= (float)sqrt(sum);
    }
    return sealed(x);
}

/* From 0 to 1. */
static const float *random_shares(int64_t rows, int64_t stride)
{
    float *x = place((size_t)((rows - 1) * stride + 1) * 4, 4);
    for (int64_t i = 0; i < (rows - 1) * stride + 1; i++)
        x[i] = fabsf(random_float());
    return sealed(x);
}

/* Panels and what they are multiplied by. */
static float *random_matrix_state(int64_t k_dim, int64_t v_dim, float scale)
{
    int64_t n = (int64_t)ox_delta_state((size_t)k_dim, (size_t)v_dim);
    float *panels = random_state(v_dim, k_dim, scale), *h = place((size_t)n * 4, 64);
    memcpy(h, panels, (size_t)(n - 16) * 4);
    for (int64_t i = n - 16; i < n; i++)
        h[i] = i == n - 16 ? 0.5f : 0;
    return h;
}

static void check_delta(const ox_kernels *scalar, const ox_kernels *t, int64_t k_dim, int64_t v_dim, int64_t tokens, int form)
{
    int64_t k_stride = k_dim + GAP, v_stride = v_dim + GAP, state = (int64_t)ox_delta_state((size_t)k_dim, (size_t)v_dim);
    ox_delta_args a = {.q_stride = (size_t)k_stride, .k_stride = (size_t)k_stride, .v_stride = (size_t)v_stride, .y_stride = (size_t)v_stride,
                       .decay_stride = 1 + GAP, .beta_stride = 1, .n_tokens = tokens, .k_dim = k_dim, .v_dim = v_dim, .stream = form & 1};
    doing("delta of %d by %d, %d tokens, form %d", (int)k_dim, (int)v_dim, (int)tokens, form);
    a.q = random_units(tokens, k_stride, k_dim);
    a.k = random_units(tokens, k_stride, k_dim);
    a.v = random_rows(tokens, v_stride, v_dim, 2);
    a.decay = random_shares(tokens, 1 + GAP);
    a.beta = random_shares(tokens, 1);
    a.read = form & 2 ? sealed(random_matrix_state(k_dim, v_dim, 4)) : NULL;
    ox_delta_args b = a;
    a.y = output_rows(tokens, v_stride, v_dim), b.y = output_rows(tokens, v_stride, v_dim);
    a.write = random_matrix_state(k_dim, v_dim, 9), b.write = memcpy(random_matrix_state(k_dim, v_dim, 0), a.write, (size_t)state * 4);
    CALL(scalar, delta)(&a);
    CALL(t, delta)(&b);
    expect_same(a.write, b.write, state);
    expect_same(a.y, b.y, (tokens - 1) * v_stride + v_dim);
    release();
}

/* Keys and what the old state is seen by are short, so that states stay bounded. */
static void check_dplr(const ox_kernels *scalar, const ox_kernels *t, int64_t k_dim, int64_t v_dim, int64_t tokens, int form)
{
    int64_t k_stride = k_dim + GAP, v_stride = v_dim + GAP, state = (int64_t)ox_scan_state((size_t)v_dim, (size_t)k_dim);
    ox_dplr_args a = {.k_stride = (size_t)k_stride, .v_stride = (size_t)v_stride, .y_stride = (size_t)v_stride,
                      .n_tokens = tokens, .k_dim = k_dim, .v_dim = v_dim, .stream = form & 1};
    doing("dplr of %d by %d, %d tokens, form %d", (int)k_dim, (int)v_dim, (int)tokens, form);
    a.q = random_units(tokens, k_stride, k_dim);
    a.k = random_units(tokens, k_stride, k_dim);
    a.b = random_units(tokens, k_stride, k_dim);
    a.a = random_rows(tokens, k_stride, k_dim, 0.3f / sqrtf((float)k_dim));
    a.w = random_rows(tokens, k_stride, k_dim, 0.7f);
    a.v = random_rows(tokens, v_stride, v_dim, 2);
    a.read = form & 2 ? sealed(random_state(v_dim, k_dim, 4)) : NULL;
    ox_dplr_args b = a;
    a.y = output_rows(tokens, v_stride, v_dim), b.y = output_rows(tokens, v_stride, v_dim);
    a.write = random_state(v_dim, k_dim, 9), b.write = memcpy(random_state(v_dim, k_dim, 0), a.write, (size_t)state * 4);
    CALL(scalar, dplr)(&a);
    CALL(t, dplr)(&b);
    expect_same(a.write, b.write, state);
    expect_same(a.y, b.y, (tokens - 1) * v_stride + v_dim);
    release();
}

static void check_parts_of_delta(const ox_kernels *scalar, const ox_kernels *t, int64_t n)
{
    const float *x = random_floats(n, 2), *z = random_floats(n, 4), *w = random_floats(n, 1);
    float *a = output_rows(1, n, n), *b = output_rows(1, n, n);
    doing("decay of %d", (int)n);
    CALL(scalar, decay)(x, z, w, a, n);
    CALL(t, decay)(x, z, w, b, n);
    expect_same(a, b, n);
    doing("bounded_decay of %d", (int)n);
    CALL(scalar, bounded_decay)(x, z, 1.7f, -2.3f, a, n);
    CALL(t, bounded_decay)(x, z, 1.7f, -2.3f, b, n);
    expect_same(a, b, n);
    doing("l2_norm of %d", (int)n);
    CALL(scalar, l2_norm)(x, a, n, 1e-6f, 0.3f);
    CALL(t, l2_norm)(x, b, n, 1e-6f, 0.3f);
    expect_same(a, b, n);
    doing("gated_norm of %d", (int)n);
    CALL(scalar, gated_norm)(x, z, w, a, n, 1e-6f);
    CALL(t, gated_norm)(x, z, w, b, n, 1e-6f);
    expect_same(a, b, n);
    release();
}

void check_recurrent(const ox_kernels *scalar, const ox_kernels *t)
{
    static const int channels[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 70}, tokens[] = {1, 2, 3, 5, 31, 32, 33, 70};
    static const int states[] = {1, 5, 8, 16, 19, 24, 32};
    for (int i = 0; i < COUNT(channels); i++)
        for (int form = 0; form < 64; form++) {
            special_values = form % 32 > 24;
            int n = tokens[random_bits() % COUNT(tokens)];
            check_conv(scalar, t, channels[i], 1 + (int)(random_bits() % 6), n, form & 15);
            check_scan(scalar, t, channels[i], states[random_bits() % COUNT(states)], n, form & 31);
            check_delta(scalar, t, states[random_bits() % COUNT(states)], channels[i], n, form & 3);
            check_dplr(scalar, t, states[random_bits() % COUNT(states)], channels[i], n, form & 3);
            check_parts_of_delta(scalar, t, channels[i]);
        }
}
