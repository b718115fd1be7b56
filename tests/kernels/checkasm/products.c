/* Matrix products: the scalar tier's bits, but for those of bfloat16, and a row that doesn't depend on its company. */
#include "check.h"

enum { STRIDE_GAP = 3 };

typedef struct {
    const matrix *m;
    const float *x; /* [n_x][k] */
    int64_t n_x, n_tokens;
    const int32_t *x_rows, *y_rows; /* of n_tokens, or NULL */
    const float *base;              /* what y holds before, [n_tokens][n_rows + STRIDE_GAP] */
    int32_t accumulate;
    int rounds;                     /* activations are rounded to bfloat16: an order of its own */
} product;

static size_t y_floats(const product *p) { return (size_t)(p->n_tokens - 1) * (size_t)(p->m->n_rows + STRIDE_GAP) + (size_t)p->m->n_rows; }

/* y of one tier, by its own packing, or by rows as they are `stored`, and its own activation codes. */
static const float *multiply_by(const ox_kernels *t, const product *p, int stored)
{
    const ox_format_info *f = p->m->format;
    size_t k = (size_t)p->m->k;
    size_t x_bytes = p->rounds ? ox_bf16_row_bytes(k) : f->values == 1 ? 4 * k : ox_q8_row_bytes(k);
    uint8_t *x = place((size_t)p->n_x * x_bytes, 4);
    for (int64_t i = 0; i < p->n_x; i++) {
        if (p->rounds)
            CALL(t, round_bf16)(copy(p->x + (size_t)i * k, 4 * k, 4), x + (size_t)i * x_bytes, p->m->k);
        else if (f->values == 1)
            memcpy(x + (size_t)i * x_bytes, p->x + (size_t)i * k, 4 * k);
        else
            CALL(t, quantise_q8)(copy(p->x + (size_t)i * k, 4 * k, 4), x + (size_t)i * x_bytes, p->m->k, 0, p->m->k);
    }
    seal(x);
    float *y = memcpy(place(y_floats(p) * 4, 4), p->base, y_floats(p) * 4);
    ox_gemm_args a = {
        .w = stored ? copy(p->m->rows, (size_t)p->m->n_rows * p->m->row_bytes, 1) : packed(t, p->m),
        .panel_bytes = stored ? 16 * p->m->row_bytes : panel_bytes(p->m), .k = p->m->k, .n_rows = p->m->n_rows,
        .x = x, .x_bytes = x_bytes, .x_rows = p->x_rows,
        .y = y, .y_stride = (size_t)(p->m->n_rows + STRIDE_GAP), .y_rows = p->y_rows,
        .n_tokens = p->n_tokens, .accumulate = p->accumulate, .from_memory = 1,
    };
    if (stored && p->rounds)
        CALL(t, gemm_bf16_rows)(&a);
    else if (stored)
        CALL(t, gemm_rows[f->kernel])(&a);
    else if (p->rounds)
        CALL(t, gemm_bf16)(&a);
    else
        CALL(t, gemm[f->kernel])(&a);
    return y;
}

static const float *multiply(const ox_kernels *t, const product *p) { return multiply_by(t, p, 0); }

/* Rows as they are stored, of whole panels, give the bits of their panels. */
static void compare_stored(const ox_kernels *t, const product *p)
{
    matrix whole = *p->m;
    product q = *p;
    whole.n_rows = p->m->n_rows / 16 * 16;
    q.m = &whole;
    if (!(p->rounds ? t->gemm_bf16_rows : t->gemm_rows[p->m->format->kernel]) || !whole.n_rows)
        return;
    const float *expected = multiply(t, &q);
    expect_equal(expected, multiply_by(t, &q, 1), y_floats(&q) * 4);
}

/* Half a unit in the last place of every partial sum, for each addition and a few roundings per term; twice that. An
 * activation rounded to bfloat16, of 8 significant bits, is off by up to 2^-8 of itself. */
static double bound_of(const product *p, int64_t row, int64_t x_row)
{
    int64_t values = p->m->format->values, blocks = p->m->k / values;
    double size = 0;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = 0; i < values; i++)
            size += p->m->largest[row * blocks + b] * fabs((double)p->x[x_row * p->m->k + b * values + i]);
    return (0x1p-23 * (8 + (double)p->m->k / (values == 1 ? 1 : 8)) + (p->rounds ? 0x1p-8 : 0)) * (size + 1);
}

static void compare(const product *p, const float *expected, const float *got)
{
    int64_t stride = p->m->n_rows + STRIDE_GAP;
    for (int64_t i = 0; i < p->n_tokens; i++) {
        int64_t x_row = p->x_rows ? p->x_rows[i] : i, y_row = p->y_rows ? p->y_rows[i] : i;
        if (!p->rounds)
            expect_same(expected + y_row * stride, got + y_row * stride, p->m->n_rows);
        for (int64_t r = 0; r < p->m->n_rows && p->rounds; r++)
            expect_near(expected + y_row * stride + r, got + y_row * stride + r, 1, bound_of(p, r, x_row));
        if (y_row + 1 < p->n_tokens)
            expect_equal(p->base + y_row * stride + p->m->n_rows, got + y_row * stride + p->m->n_rows, STRIDE_GAP * 4);
    }
}

/* The same tokens one by one, in rows of their own: equal bits. */
static void compare_alone(const ox_kernels *t, const product *p, const float *together)
{
    int64_t stride = p->m->n_rows + STRIDE_GAP;
    for (int64_t i = 0; i < p->n_tokens; i += p->n_tokens > 9 ? 13 : 1) {
        int64_t x_row = p->x_rows ? p->x_rows[i] : i, y_row = p->y_rows ? p->y_rows[i] : i;
        product one = *p;
        one.x += x_row * p->m->k;
        one.base += y_row * stride;
        one.n_x = one.n_tokens = 1;
        one.x_rows = one.y_rows = NULL;
        expect_equal(together + y_row * stride, multiply(t, &one), (size_t)p->m->n_rows * 4);
    }
}

static int specials;        /* among the activations */
static int64_t most_tokens; /* products of more are left out: what check_products was asked for */

static void check_product(const ox_kernels *scalar, const ox_kernels *t, const ox_format_info *f, int64_t n_rows, int64_t k,
                          int64_t n, int gather, int rounds)
{
    static float x[80 * 1024], base[80 * (90 + STRIDE_GAP)];
    int32_t x_rows[80], y_rows[80];
    if (n > most_tokens)
        return;
    matrix m = random_matrix(scalar, f, n_rows, k);
    fill_floats(x, n * k, 1);
    if (specials) {
        fill_specials(x, n * k);
        for (int64_t i = 0; i < n * k; i++) /* only some rows are to be NaN */
            x[i] = i / k % 2 && !isfinite(x[i]) ? 1e-41f : x[i];
    }
    fill_floats(base, n * (n_rows + STRIDE_GAP), 1);
    for (int32_t i = 0; i < n; i++) {
        x_rows[i] = (int32_t)(random_bits() % (uint64_t)n);
        y_rows[i] = (int32_t)((i * 3 + 1) % n); /* n is no multiple of 3 where this is used */
    }
    product p = {&m, x, n, n, gather ? x_rows : NULL, gather ? y_rows : NULL, base, gather, rounds}, exact = p;
    exact.rounds = 0;
    doing("gemm%s[%s], %d x %d, %d tokens%s%s", rounds ? "_bf16" : "", f->name, (int)n_rows, (int)k, (int)n,
          gather ? ", gathered and added" : "", specials ? ", special values" : "");
    const float *got = multiply(t, &p);
    compare(&p, multiply(scalar, &exact), got);
    if (!specials) { /* whose bits are compared, and those of NaN may differ */
        compare_alone(t, &p, got);
        compare_stored(t, &p);
    }
    release();
}

static void check_format(const ox_kernels *scalar, const ox_kernels *t, const ox_format_info *f, int rounds)
{
    static const int rows[] = {1, 15, 16, 17, 50};
    int64_t k = f->values == 1 ? 33 : f->values;
    for (int n = 1; n <= 15; n++) /* every part of a tile, alone and behind a whole one */
        check_product(scalar, t, f, rows[n % COUNT(rows)], 2 * k, n, 0, rounds);
    for (int j = 0; j < COUNT(rows); j++)
        check_product(scalar, t, f, rows[j], k, 10, 1, rounds);
    for (specials = !rounds; specials; specials = 0)
        for (int n = 1; n <= 9; n += 4)
            check_product(scalar, t, f, 17, k, n, 0, rounds);
    static const int lines[] = {64, 96, 48, 80, 24, 40, 31, 63, 95}; /* columns: whole lines of the cache, and halves behind them */
    for (int n = 0; n < COUNT(lines) && f->values == 1; n++)
        check_product(scalar, t, f, 50, lines[n], n % 4 + 1, 0, rounds);
    check_product(scalar, t, f, 83, k, 67, 1, rounds); /* more panels and tokens than one group has */
    /* Parts of a group, alone and behind whole ones; no multiples of 3. Columns: as many as go through tiles (TILES_LEAST
     * tokens times columns); elsewhere a step of eight chunks and half of the next, or two steps of large blocks. */
    static const int tokens[] = {17, 34, 61, 80};
    const int64_t columns = f->values == 1 ? 95 : strcmp(t->name, "amx") == 0 ? 1024 : f->values < 256 ? 384 : 512;
    for (int n = 0; n < COUNT(tokens); n++)
        for (int gather = 0; gather < 2; gather++)
            check_product(scalar, t, f, 33, columns, tokens[n], gather, rounds);
}

void check_products_of(const ox_kernels *scalar, const ox_kernels *t, int kernel)
{
    for (int i = 0; i < ox_n_formats; i++)
        if (ox_formats[i].kernel == kernel) {
            check_format(scalar, t, &ox_formats[i], 0);
            if (kernel == OX_BF16 && t->gemm_bf16)
                check_format(scalar, t, &ox_formats[i], 1);
        }
}

void check_products(const ox_kernels *scalar, const ox_kernels *t, int64_t most)
{
    most_tokens = most;
    for (int kernel = 0; kernel < OX_N_KERNEL_FORMATS; kernel++)
        check_products_of(scalar, t, kernel);
}
