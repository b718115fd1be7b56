/* What bends a row: activations, gated ones, caps and bounds. */
#include "functions.h"
#include "scalar.h"

void ox_scale(float *x, float a, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= a;
}

void ox_softcap(float *x, float cap, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = cap * ox_tanh(x[i] * (1 / cap));
}

static float bounded(float x, float limit) { return ox_min(limit, ox_max(-limit, x)); }

void ox_clamp(float *x, float limit, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = bounded(x[i], limit);
}

/* Sigmoid-weighted: Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units", 2017. */
void ox_silu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = ox_silu_of(x[i]);
}

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016. */
void ox_gelu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = ox_gelu_of(x[i]);
}

/* The same function without the approximation: x times the normal distribution function. */
void ox_gelu_erf(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= ox_normal(x[i]);
}

void ox_relu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = ox_max(0, x[i]);
}

/* So, Manke, Liu, Dai, Shazeer and Le, "Primer", 2021. */
void ox_relu2(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float p = ox_max(0, x[i]);
        x[i] = p * p;
    }
}

/* The integral of an ELU: Huang and Schlag, "Deriving Activation Functions Using Integration", 2024. */
void ox_xielu(float *x, int64_t n, float p, float q, float beta, float eps)
{
    float slope = beta - q;
    for (int64_t i = 0; i < n; i++) {
        float below = ox_min(0, x[i]), above = ox_max(0, x[i]), bent = q * ox_expm1(ox_min(eps, below));
        bent -= x[i] < 0x1p-149f ? 0 : bent; /* nothing above zero */
        x[i] = ox_fma(slope, below, bent) + ox_fma(p, above, beta) * above;
    }
}

void ox_sigmoid(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = ox_times_sigmoid(1, x[i]);
}

void ox_softplus(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = ox_softplus_of(x[i]);
}

/* This and the next three: Shazeer, "GLU Variants Improve Transformer", 2020. */
void ox_swiglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = ox_silu_of(gate[i]) * up[i];
}

void ox_geglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = ox_gelu_of(gate[i]) * up[i];
}

void ox_geglu_erf(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] * ox_normal(gate[i]) * up[i];
}

void ox_reglu(const float *gate, const float *up, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = ox_max(0, gate[i]) * up[i];
}

/* That of Step 3.5, whose gate is bounded after the activation: StepFun, 2026. */
void ox_swiglu_limited(const float *gate, const float *up, float *y, int64_t n, float limit)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = ox_min(limit, ox_silu_of(gate[i])) * bounded(up[i], limit);
}

/* That of gpt-oss: OpenAI, "gpt-oss-120b and gpt-oss-20b Model Card", 2025. */
void ox_swiglu_oai(const float *gate, const float *up, float *y, int64_t n, float alpha, float limit)
{
    for (int64_t i = 0; i < n; i++) {
        float g = ox_min(limit, gate[i]);
        y[i] = ox_times_sigmoid(g, alpha * g) * (bounded(up[i], limit) + 1);
    }
}
