/* Operations on single rows, and the storing of keys and values. */
#include "check.h"

typedef void row_fn(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n);
static void rms_norm(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { CALL(t, rms_norm)(a, b, y, n, 1e-5f); }
static void add(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)b; CALL(t, add)(a, y, n); }
static void add_scaled(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)b; CALL(t, add_scaled)(a, 0.3f, y, n); }
static void swiglu(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { CALL(t, swiglu)(a, b, y, n); }
static void layer_norm(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { CALL(t, layer_norm)(a, b, y, y, n, 1e-5f); }
static void plain_norm(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)b; CALL(t, layer_norm)(a, NULL, NULL, y, n, 1e-5f); }
static void geglu(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { CALL(t, geglu)(a, b, y, n); }
static void swiglu_oai(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { CALL(t, swiglu_oai)(a, b, y, n, 1.702f, 1.5f); }
static void swiglu_limited(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { CALL(t, swiglu_limited)(a, b, y, n, 1.5f); }
static void geglu_erf(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { CALL(t, geglu_erf)(a, b, y, n); }
static void reglu(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { CALL(t, reglu)(a, b, y, n); }
static void mul(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)b; CALL(t, mul)(a, y, n); }
static void sigmoid(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, sigmoid)(y, n); }
static void softplus(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, softplus)(y, n); }
static void scale(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, scale)(y, 0.3f, n); }
static void softcap(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, softcap)(y, 2.5f, n); }
static void clamp(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, clamp)(y, 1.5f, n); }
static void silu(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, silu)(y, n); }
static void gelu(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, gelu)(y, n); }
static void gelu_erf(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, gelu_erf)(y, n); }
static void relu(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, relu)(y, n); }
static void relu2(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, relu2)(y, n); }
static void xielu(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, xielu)(y, n, 0.9f, 1.4f, 0.5f, -1e-6f); }
static void softmax(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)a, (void)b; CALL(t, softmax)(y, n); }
static void rope_neox(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)b; CALL(t, rope_neox)(y, a, n); }
static void rope_norm(const ox_kernels *t, const float *a, const float *b, float *y, int64_t n) { (void)b; CALL(t, rope_norm)(y, a, n); }

static const struct { const char *name; row_fn *call; int even; } operations[] = {
    {"rms_norm", rms_norm, 0}, {"add", add, 0}, {"add_scaled", add_scaled, 0}, {"swiglu", swiglu, 0},
    {"softmax", softmax, 0}, {"rope_neox", rope_neox, 1}, {"rope_norm", rope_norm, 1}, {"layer_norm", layer_norm, 0},
    {"layer_norm", plain_norm, 0}, {"geglu", geglu, 0}, {"swiglu_oai", swiglu_oai, 0}, {"scale", scale, 0},
    {"softcap", softcap, 0}, {"clamp", clamp, 0}, {"silu", silu, 0}, {"gelu", gelu, 0}, {"gelu_erf", gelu_erf, 0},
    {"relu2", relu2, 0}, {"relu", relu, 0}, {"swiglu_limited", swiglu_limited, 0}, {"geglu_erf", geglu_erf, 0},
    {"reglu", reglu, 0}, {"mul", mul, 0}, {"sigmoid", sigmoid, 0}, {"softplus", softplus, 0}, {"xielu", xielu, 0},
};

static void check_row(const ox_kernels *scalar, const ox_kernels *t, int op, int64_t n, int specials)
{
    float a[300], b[300], y[300];
    doing("%s of %d%s", operations[op].name, (int)n, specials ? ", special values" : "");
    fill_floats(a, n, 8);
    fill_floats(b, n, 2);
    fill_floats(y, n, 4);
    if (specials) {
        fill_specials(a, n);
        fill_specials(y, n);
    }
    float *expected = memcpy(place((size_t)n * 4, 4), y, (size_t)n * 4), *got = memcpy(place((size_t)n * 4, 4), y, (size_t)n * 4);
    operations[op].call(scalar, copy(a, (size_t)n * 4, 4), copy(b, (size_t)n * 4, 4), expected, n);
    operations[op].call(t, copy(a, (size_t)n * 4, 4), copy(b, (size_t)n * 4, 4), got, n);
    expect_same(expected, got, n);
    release();
}

/* Halves: all of them, what lies between two, and any other bits. */
static void check_halves(const ox_kernels *scalar, const ox_kernels *t, int64_t n)
{
    float x[300];
    doing("to_f16 of %d", (int)n);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)random_bits();
        if (random_bits() % 2) /* of about the size of a half, often half way between two */
            bits = (bits & 0x8000ffff) | (uint32_t)(0x33000000 + random_bits() % 0x15000000 / 0x1000 * 0x1000);
        memcpy(x + i, &bits, 4);
    }
    uint16_t *expected = place((size_t)n * 2, 2), *got = place((size_t)n * 2, 2);
    CALL(scalar, to_f16)(copy(x, (size_t)n * 4, 4), expected, n);
    CALL(t, to_f16)(copy(x, (size_t)n * 4, 4), got, n);
    expect_equal(expected, got, (size_t)n * 2);
    release();
}

/* A few lanes of one panel; what lies between stays. */
static void check_store(const ox_kernels *scalar, const ox_kernels *t, int64_t n)
{
    float x[300];
    for (int i = 0; i < 2 * OX_N_KV_TYPES; i++) {
        ox_kv_type type = (ox_kv_type)(i / 2);
        size_t bytes = i % 2 ? ox_v_panel_bytes(type, (size_t)n) : ox_k_panel_bytes(type, (size_t)n);
        uint8_t *expected = place(bytes, 64), *got = place(bytes, 64);
        doing("store_%s[%d] of %d", i % 2 ? "value" : "key", type, (int)n);
        for (int64_t lane = (int64_t)(random_bits() % 4); lane < 16; lane += 5) {
            fill_floats(x, n, 100);
            const float *row = copy(x, (size_t)n * 4, 4);
            (i % 2 ? CALL(scalar, store_value[type]) : CALL(scalar, store_key[type]))(row, expected, lane, n);
            (i % 2 ? CALL(t, store_value[type]) : CALL(t, store_key[type]))(row, got, lane, n);
        }
        expect_equal(expected, got, bytes);
        release();
    }
}

/* Magnitudes from where the inverse of the scale would overflow to where squares would; NaN and infinity. */
static void check_codes(const ox_kernels *scalar, const ox_kernels *t, int64_t k)
{
    static const float magnitudes[] = {1, 5e-37f, 2.5e-37f, 1e-37f, 1e-38f, 1e-44f, 1e5f, 1e18f, 1e30f, 1e37f, 0};
    float x[512];
    doing("quantise_q8 of %d", (int)k);
    for (int64_t i = 0; i < k; i += 32)
        fill_floats(x + i, 32, magnitudes[random_bits() % COUNT(magnitudes)]);
    if (random_bits() % 4 == 0) {
        uint64_t at = random_bits() % (uint64_t)k;
        x[at] = random_bits() % 2 ? NAN : -INFINITY;
    }
    size_t bytes = ox_q8_row_bytes((size_t)k);
    uint8_t *expected = place(bytes, 4), *got = place(bytes, 4);
    int64_t first = k / 64 * 32; /* in one piece, and in two */
    CALL(scalar, quantise_q8)(copy(x, (size_t)k * 4, 4), expected, k, 0, k);
    CALL(t, quantise_q8)(copy(x, (size_t)first * 4, 4), got, k, 0, first);
    CALL(t, quantise_q8)(copy(x + first, (size_t)(k - first) * 4, 4), got, k, first, k - first);
    expect_equal(expected, got, bytes);
    release();
}

/* What a score of minus infinity masks gets exactly zero. */
static void check_mask(const ox_kernels *t, int64_t n)
{
    float x[300];
    fill_floats(x, n, 10);
    for (int64_t i = 1; i < n; i += 3)
        x[i] = i % 2 ? -INFINITY : -300;
    doing("softmax of %d with masked scores", (int)n);
    float *y = memcpy(place((size_t)n * 4, 4), x, (size_t)n * 4);
    CALL(t, softmax)(y, n);
    for (int64_t i = 1; i < n; i += 3)
        expect(y[i] == 0, "score %d is masked and weighs %g", (int)i, y[i]);
    release();
}

void check_rows(const ox_kernels *scalar, const ox_kernels *t)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257};
    for (int i = 0; i < COUNT(sizes); i++) {
        for (int op = 0; op < COUNT(operations); op++)
            if (!operations[op].even || sizes[i] % 2 == 0)
                for (int specials = 0; specials < 8; specials++)
                    check_row(scalar, t, op, sizes[i], specials);
        check_halves(scalar, t, sizes[i]);
        check_store(scalar, t, sizes[i]);
        check_mask(t, sizes[i]);
    }
    for (int i = 0; i < 100; i++) {
        check_halves(scalar, t, 256);
        check_codes(scalar, t, 32 * (1 + i % 16));
    }
}
