/* Operations on single rows of activations. */
#include <math.h>
#include "scalar.h"

/* y = x / sqrt(mean(x^2) + eps) * w: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019. */
void ox_rms_norm(const float *x, const float *w, float *y, int64_t n, float eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    float scale = 1 / sqrtf((float)(sum / (double)n) + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

void ox_add(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

void ox_add_scaled(const float *x, float a, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

void ox_swiglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

void ox_softmax(float *x, int64_t n)
{
    float max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = fmaxf(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += x[i] = expf(x[i] - max);
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
