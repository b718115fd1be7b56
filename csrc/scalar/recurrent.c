/* Layers that keep a state of fixed size: short convolutions and selective scans. */
#include "functions.h"
#include "scalar.h"

/* What the convolution reads of channel c at token t, which may lie up to n_taps - 1 before the first. */
static float input(const ox_conv1d_args *a, int64_t t, int64_t c)
{
    if (t < 0)
        return a->read ? a->read[(t + a->n_taps - 1) * (int64_t)a->w_stride + c] : 0;
    size_t i = (size_t)t * a->x_stride + (size_t)c;
    return a->in_gate ? a->x[i] * a->in_gate[i] : a->x[i];
}

void ox_conv1d(const ox_conv1d_args *a)
{
    for (int64_t c = 0; c < a->n_channels; c++) {
        for (int64_t t = 0; t < a->n_tokens; t++) {
            float sum = a->bias ? a->bias[c] : 0;
            for (int k = 0; k < a->n_taps; k++)
                sum = ox_fma(a->w[(size_t)k * a->w_stride + (size_t)c], input(a, t - a->n_taps + 1 + k, c), sum);
            if (a->silu)
                sum = ox_silu_of(sum);
            if (a->out_gate)
                sum *= a->out_gate[(size_t)t * a->x_stride + (size_t)c];
            a->y[(size_t)t * a->y_stride + (size_t)c] = sum;
        }
        for (int k = 0; k < a->n_taps - 1; k++)
            a->write[(size_t)k * a->w_stride + (size_t)c] = input(a, a->n_tokens - a->n_taps + 1 + k, c);
    }
}

/* y and the products of new values with c. Of each whole 16 values, every other product goes to a sum of its own, which
 * is added to the first behind the last of them. */
static float sum_of(const float *c, const float *h, int n, float y)
{
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        float odd = 0;
        for (int j = i; j < i + 16; j += 2) {
            y = ox_fma(h[16 * j], c[j], y);
            odd = ox_fma(h[16 * (j + 1)], c[j + 1], odd);
        }
        y += odd;
    }
    for (; i < n; i++)
        y = ox_fma(h[16 * i], c[i], y) + 0.0f;
    return y;
}

/* One token of one channel, whose state is h[0], h[16], h[32] ...; decay and step of scan2 are shared by channels. What
 * pads the last panel are channels of zeros. */
static void advance(const ox_scan_args *a, int64_t t, int64_t channel, int64_t shared, float *h)
{
    const float *b = a->b + (size_t)t * a->bc_stride, *c = a->c + (size_t)t * a->bc_stride;
    const float *decay = a->a + (shared ? 0 : channel / 16 * 16 * a->n_state + channel % 16);
    int64_t own = shared ? 0 : channel, is_real = channel < a->n_channels, has_own = shared || is_real;
    float x = is_real ? a->x[(size_t)t * a->x_stride + (size_t)channel] : 0;
    float dt = has_own ? a->dt[(size_t)t * a->dt_stride + (size_t)own] : 0;
    float step = ox_softplus_of(dt + (has_own && a->dt_bias ? a->dt_bias[own] : 0));
    for (int i = 0; i < a->n_state; i++)
        h[16 * i] = ox_fma(h[16 * i], ox_exp(step * decay[shared ? 0 : 16 * i]), step * x * b[i]);
    if (!is_real)
        return;
    float y = sum_of(c, h, a->n_state, a->d[own] * x);
    if (a->z)
        y *= ox_silu_of(a->z[(size_t)t * a->z_stride + (size_t)channel]);
    a->y[(size_t)t * a->y_stride + (size_t)channel] = y;
}

static void scan(const ox_scan_args *a, int shared)
{
    size_t n = ox_scan_state((size_t)a->n_channels, (size_t)a->n_state);
    for (size_t i = 0; i < n; i++)
        a->write[i] = a->read ? a->read[i] : 0;
    for (int64_t channel = 0; channel < (a->n_channels + 15) / 16 * 16; channel++)
        for (int64_t t = 0; t < a->n_tokens; t++)
            advance(a, t, channel, shared, a->write + channel / 16 * 16 * a->n_state + channel % 16);
}

void ox_scan1(const ox_scan_args *a) { scan(a, 0); }
void ox_scan2(const ox_scan_args *a) { scan(a, 1); }
