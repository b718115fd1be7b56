/* What bends a row: activations, gated ones, caps and bounds. In double where a float would lose digits. */
#include <math.h>
#include "scalar.h"

void ox_scale(float *x, float a, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= a;
}

void ox_softcap(float *x, float cap, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(cap * tanh((double)x[i] / cap));
}

/* NaN is neither below nor above. */
static float bounded(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

void ox_clamp(float *x, float limit, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = bounded(x[i], -limit, limit);
}

/* Sigmoid-weighted: Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units", 2017. */
void ox_silu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / (1 + expf(-x[i]));
}

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016. */
static double gelu(double x)
{
    return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

void ox_gelu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)gelu(x[i]);
}

/* The same function without the approximation: x times the normal distribution function. */
static double gelu_erf(double x) { return 0.5 * x * erfc(-0.70710678118654752440 * x); }

void ox_gelu_erf(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)gelu_erf(x[i]);
}

void ox_relu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] < 0 ? 0 : x[i];
}

/* So, Manke, Liu, Dai, Shazeer and Le, "Primer", 2021. */
void ox_relu2(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float p = x[i] < 0 ? 0 : x[i];
        x[i] = p * p;
    }
}

/* The integral of an ELU: Huang and Schlag, "Deriving Activation Functions Using Integration", 2024. */
void ox_xielu(float *x, int64_t n, float p, float q, float beta, float eps)
{
    for (int64_t i = 0; i < n; i++) {
        double v = x[i], slope = v > 0 ? p * v + beta : (double)beta - q;
        x[i] = (float)(slope * v + (v > 0 ? 0 : q * expm1(v > eps ? eps : v)));
    }
}

void ox_sigmoid(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(1 / (1 + exp(-(double)x[i])));
}

void ox_softplus(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(x[i] > 20 ? x[i] + exp(-(double)x[i]) : log1p(exp((double)x[i])));
}

/* This and the next three: Shazeer, "GLU Variants Improve Transformer", 2020. */
void ox_swiglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

void ox_geglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)gelu(gate[i]) * up[i];
}

void ox_geglu_erf(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)gelu_erf(gate[i]) * up[i];
}

void ox_reglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (gate[i] < 0 ? 0 : gate[i]) * up[i];
}

/* That of Step 3.5, whose gate is bounded after the activation: StepFun, 2026. */
void ox_swiglu_limited(const float *gate, const float *up, float *y, int64_t n, float limit)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = bounded(gate[i] / (1 + expf(-gate[i])), -INFINITY, limit) * bounded(up[i], -limit, limit);
}

/* That of gpt-oss: OpenAI, "gpt-oss-120b and gpt-oss-20b Model Card", 2025. */
void ox_swiglu_oai(const float *gate, const float *up, float *y, int64_t n, float alpha, float limit)
{
    for (int64_t i = 0; i < n; i++) {
        float g = bounded(gate[i], -INFINITY, limit), u = bounded(up[i], -limit, limit);
        y[i] = g / (1 + expf(-alpha * g)) * (u + 1);
    }
}
