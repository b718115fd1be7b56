/* Tensor formats: dequantising, quantising, packing. All of it bit for bit. */
#include "check.h"
#include <stdlib.h>

static void random_block(const ox_kernels *scalar, const ox_format_info *f, uint8_t *block, float *largest)
{
    float values[256];
    for (int good = 0; !good;) {
        for (int i = 0; i < f->bytes; i++)
            block[i] = (uint8_t)random_bits();
        scalar->dequantise[f->kernel](block, values, f->values);
        *largest = 0;
        for (int i = 0; i < f->values; i++) /* NaN comes through, and fails the next test */
            *largest = fabsf(values[i]) <= *largest ? *largest : fabsf(values[i]);
        good = *largest >= 1e-3f && *largest <= 10;
    }
}

matrix random_matrix(const ox_kernels *scalar, const ox_format_info *f, int64_t n_rows, int64_t k)
{
    int64_t blocks = n_rows * (k / f->values);
    matrix m = {f, k, n_rows, (size_t)(k / f->values * f->bytes), NULL, NULL};
    m.rows = place((size_t)blocks * (size_t)f->bytes, 1);
    m.largest = place((size_t)blocks * 4, 4);
    for (int64_t i = 0; i < blocks; i++)
        random_block(scalar, f, m.rows + i * f->bytes, m.largest + i);
    seal(m.rows);
    return m;
}

size_t panel_bytes(const matrix *m)
{
    int64_t values = m->format->packed_values;
    return (size_t)((m->k + values - 1) / values * m->format->packed_bytes);
}

const uint8_t *packed(const ox_kernels *t, const matrix *m)
{
    int64_t n = (m->n_rows + 15) / 16;
    uint8_t *panels = place((size_t)n * panel_bytes(m), 64);
    for (int64_t i = 0; i < n; i++)
        CALL(t, pack[m->format->kernel])(m->rows + (size_t)i * 16 * m->row_bytes, m->row_bytes,
                                         m->n_rows - 16 * i < 16 ? m->n_rows - 16 * i : 16, m->k,
                                         panels + (size_t)i * panel_bytes(m));
    seal(panels);
    return panels;
}

static void check_reading(const ox_kernels *scalar, const ox_kernels *t, const ox_format_info *f, int64_t n_rows, int64_t k)
{
    matrix m = random_matrix(scalar, f, n_rows, k);
    doing("pack[%s] of %d x %d", f->name, (int)n_rows, (int)k);
    expect_equal(packed(scalar, &m), packed(t, &m), (size_t)((n_rows + 15) / 16) * panel_bytes(&m));
    doing("dequantise[%s] of %d", f->name, (int)k);
    for (int64_t r = 0; r < n_rows; r++) {
        const uint8_t *row = copy(m.rows + (size_t)r * m.row_bytes, m.row_bytes, 1);
        float *expected = place((size_t)k * 4, 4), *got = place((size_t)k * 4, 4);
        CALL(scalar, dequantise[f->kernel])(row, expected, k);
        CALL(t, dequantise[f->kernel])(row, got, k);
        expect_equal(expected, got, (size_t)k * 4);
    }
    release();
}

/* Rows of random numbers, with an outlier, of zeros, and of numbers that halves don't hold. */
static void check_quantising(const ox_kernels *scalar, const ox_kernels *t, const ox_format_info *f, int64_t k)
{
    float x[512];
    for (int kind = 0; kind < 4; kind++) {
        size_t bytes = (size_t)(k / f->values * f->bytes);
        uint8_t *expected = place(bytes, 4), *got = place(bytes, 4);
        fill_floats(x, k, kind == 2 ? 0 : kind == 3 ? 1e-9f : 1);
        if (kind == 1)
            x[k / 2] = -30;
        doing("quantise[%s] of %d, kind %d", f->name, (int)k, kind);
        CALL(scalar, quantise[f->kernel])(copy(x, (size_t)k * 4, 4), expected, k);
        CALL(t, quantise[f->kernel])(copy(x, (size_t)k * 4, 4), got, k);
        expect_equal(expected, got, bytes);
        release();
    }
}

void check_formats(const ox_kernels *scalar, const ox_kernels *t)
{
    static const int rows[] = {1, 5, 16};
    for (int i = 0; i < ox_n_formats; i++) {
        const ox_format_info *f = &ox_formats[i];
        if (f->kernel < 0)
            continue;
        for (int j = 0; j < COUNT(rows); j++)
            check_reading(scalar, t, f, rows[j], f->values == 1 ? 7 : 2 * f->values);
        if (t->quantise[f->kernel])
            check_quantising(scalar, t, f, f->values == 1 ? 7 : 2 * f->values);
    }
}
