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

/* y = (x - mean(x)) / sqrt(variance(x) + eps) * w + b: Ba, Kiros and Hinton, "Layer Normalization", 2016. */
void ox_layer_norm(const float *x, const float *w, const float *b, float *y, int64_t n, float eps)
{
    double sum = 0, square = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean);
    double scale = 1 / sqrt(square / (double)n + (double)eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)((x[i] - mean) * scale * (w ? w[i] : 1) + (b ? b[i] : 0));
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
        y[i] += a * x[i];
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
