/* Operations on single rows of activations. */
#include "functions.h"
#include "scalar.h"

/* Of squares, for the norms. */
static float sum_of_squares(const float *x, int64_t n)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % 16] = ox_fma(x[i], x[i], lane[i % 16]);
    return ox_sum_lanes(lane);
}

/* y = x / sqrt(mean(x^2) + eps) * w: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019. */
void ox_rms_norm(const float *x, const float *w, float *y, int64_t n, float eps)
{
    float scale = 1 / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

/* y = (x - mean(x)) / sqrt(variance(x) + eps) * w + b: Ba, Kiros and Hinton, "Layer Normalization", 2016. */
void ox_layer_norm(const float *x, const float *w, const float *b, float *y, int64_t n, float eps)
{
    float sum[16] = {0}, square[16] = {0};
    for (int64_t i = 0; i < n; i++)
        sum[i % 16] += x[i];
    float mean = ox_sum_lanes(sum) / (float)n;
    for (int64_t i = 0; i < n; i++)
        square[i % 16] = ox_fma(x[i] - mean, x[i] - mean, square[i % 16]);
    float scale = 1 / sqrtf(ox_sum_lanes(square) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) {
        float v = (x[i] - mean) * scale;
        v = w ? v * w[i] : v;
        y[i] = b ? v + b[i] : v;
    }
}

void ox_l2_norm(const float *x, float *y, int64_t n, float eps, float scale)
{
    float factor = scale / sqrtf(sum_of_squares(x, n) + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * factor;
}

void ox_gated_norm(const float *x, const float *z, const float *w, float *y, int64_t n, float eps)
{
    float factor = 1 / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * factor * w[i] * ox_silu_of(z[i]);
}

void ox_add(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

void ox_mul(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] *= x[i];
}

void ox_add_scaled(const float *x, float a, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = ox_fma(x[i], a, y[i]);
}

void ox_softmax(float *x, int64_t n)
{
    float max = -INFINITY, lane[16] = {0};
    for (int64_t i = 0; i < n; i++)
        max = ox_max(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        lane[i % 16] += x[i] = ox_exp(x[i] - max);
    float sum = ox_sum_lanes(lane);
    for (int64_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* cos_sin holds n_rot/2 cosines, then n_rot/2 sines. */
void ox_rope_neox(float *x, const float *cos_sin, int64_t n_rot)
{
    int64_t h = n_rot / 2;
    for (int64_t i = 0; i < h; i++) {
        float a = x[i], b = x[i + h], c = cos_sin[i], s = cos_sin[i + h];
        x[i] = a * c - b * s;
        x[i + h] = a * s + b * c;
    }
}

void ox_rope_norm(float *x, const float *cos_sin, int64_t n_rot)
{
    int64_t h = n_rot / 2;
    for (int64_t i = 0; i < h; i++) {
        float a = x[2 * i], b = x[2 * i + 1], c = cos_sin[i], s = cos_sin[i + h];
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = a * s + b * c;
    }
}
