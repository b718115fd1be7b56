/* Products of float rows as files store them, for few tokens: words of VL rows are turned in registers into the vectors
 * that a packed panel would have held, and multiplied by the same steps in the same order: equal bits. After float.h
 * and a tier's pack.h. */
#include "few_rows.h"

/* Bytes of a row that are used together, from a multiple of them on: rows often lie whole pages apart, where lines
 * of all of them share one set of the first-level cache, which loses those that are used twice. Without, halves at
 * an odd multiple of 32 bytes, as in every second file, took 1.4 times as long. */
#define LINE 64
#define VECTOR (4 * VL)

/* VL words of each of VL rows as VL vectors, and of these step j as multiply_add takes it. */
typedef void turn_fn(const uint8_t *src, size_t stride, vi w[VL]);
typedef vf column_fn(const vi *w, int j);
/* All steps of words, of which `bytes` are there, in memory. */
typedef void part_fn(const uint8_t *src, size_t stride, int64_t bytes, float *columns);
/* A format: steps in so many words, bytes of a value, and values of a step. */
typedef struct {
    turn_fn *turn;
    column_fn *column;
    multiply_add_fn *multiply_add;
    int steps, value_bytes, values;
    part_fn *part;
} rows_format;

INLINE vf column_words(const vi *w, int j) { return vf_from_bits(w[j]); }
INLINE vf column_BF16(const vi *w, int j)
{
    return vf_from_bits(j % 2 ? vi_and(w[j / 2], vi_set1((int32_t)0xffff0000)) : vi_shl(w[j / 2], 16));
}

/* Steps from i on, which are those of words `first` to `last`. Requests for as many bytes at `next` stand between
 * them. */
INLINE void add_words(const rows_format f, const uint8_t *s, size_t stride, const uint8_t *next, const float *const *x,
                      int64_t i, const int first, const int last, const int T, vf *acc)
{
    const int each = f.steps / VL, words = 16 / VL; /* steps of a word, words of a line at `next` */
    vf sum[ROWS_TILE];
    vi w[VL];
    UNROLL for (int t = 0; t < T; t++)
        sum[t] = acc[t];
    f.turn(s, stride, w);
    UNROLL for (int word = first; word < last; word++) {
        if (word % words == 0)
            fetch_line(next + (word - first) / words * 64);
        UNROLL for (int j = 0; j < each; j++) {
            vf column = f.column(w, word * each + j);
            UNROLL for (int t = 0; t < T; t++)
                sum[t] = f.multiply_add(column, vf_set1(x[t][i + (word - first) * each + j]), sum[t]);
        }
    }
    UNROLL for (int t = 0; t < T; t++)
        acc[t] = sum[t];
}

/* Half a line of each row, the first or the second half of a vector. */
INLINE void add_half(const rows_format f, const uint8_t *s, size_t stride, const uint8_t *next, const float *const *x,
                     int64_t i, const int second, const int T, vf *acc)
{
    const int words = LINE / 8, first = second ? VL - words : 0;
    add_words(f, s - 4 * first, stride, next, x, i, first, first + words, T, acc);
}

/* The last n steps, of which `bytes` are there. */
INLINE void add_rest(const rows_format f, const uint8_t *s, size_t stride, int64_t bytes, const float *const *x,
                     int64_t i, int64_t n, const int T, vf *acc)
{
    float columns[2 * VL * VL];
    for (; n > 0; n -= f.steps, i += f.steps, s += VECTOR, bytes -= VECTOR) {
        f.part(s, stride, bytes, columns);
        for (int64_t j = 0; j < (n < f.steps ? n : f.steps); j++)
            UNROLL for (int t = 0; t < T; t++)
                acc[t] = f.multiply_add(vf_load(columns + j * VL), vf_set1(x[t][i + j]), acc[t]);
    }
}

/* One panel times T tokens. */
INLINE void panel_of_rows(const ox_gemm_args *a, const rows_format f, const uint8_t *s, const float *const *x,
                          const int T, vf (*acc)[ROWS_TILE])
{
    const size_t stride = a->panel_bytes / 16, half = VL * stride;
    const int step_bytes = f.value_bytes * f.values, line = LINE / step_bytes;
    const uint8_t *next = s + a->panel_bytes;
    int64_t i = 0, left = a->k * f.value_bytes;
    if (stride % LINE == 0 && (uintptr_t)s % LINE == LINE / 2) {
        for (int v = 0; v < NV; v++, next += VL * LINE / 2)
            add_half(f, s + (size_t)v * half, stride, next, x, i, 0, T, acc[v]);
        s += LINE / 2, left -= LINE / 2, i += line / 2;
    }
    for (; left >= LINE; s += LINE, left -= LINE, i += line) {
        fetch_page(next);
        for (int v = 0; v < NV; v++)
            UNROLL for (int at = 0; at < LINE; at += VECTOR, next += VL * VECTOR)
                add_words(f, s + (size_t)v * half + at, stride, next, x, i + at / step_bytes, 0, VL, T, acc[v]);
    }
    if (left >= LINE / 2 && i > 0) {
        for (int v = 0; v < NV; v++, next += VL * LINE / 2)
            add_half(f, s + (size_t)v * half, stride, next, x, i, 1, T, acc[v]);
        s += LINE / 2, left -= LINE / 2, i += line / 2;
    }
    for (int v = 0; v < NV && left > 0; v++)
        add_rest(f, s + (size_t)v * half, stride, left, x, i, (left + step_bytes - 1) / step_bytes, T, acc[v]);
}

INLINE void tile_rows_float(const ox_gemm_args *a, const rows_format f, int64_t t0, const int T)
{
    const float *x[ROWS_TILE];
    const uint8_t *rows = a->w;
    for (int t = 0; t < T; t++)
        x[t] = (const float *)x_of(a, t0 + t);
    for (int64_t row = 0; row < a->n_rows; row += 16, rows += a->panel_bytes) {
        vf acc[NV][ROWS_TILE];
        UNROLL for (int j = 0; j < NV * T; j++)
            acc[j / T][j % T] = vf_zero();
        panel_of_rows(a, f, rows, x, T, acc);
        store_panel(a, t0, T, row, ROWS_TILE, acc[0]);
    }
}

INLINE void put_columns(turn_fn *turn, column_fn *column, int steps, const uint8_t *src, size_t stride, int64_t bytes,
                        float *columns)
{
    uint8_t rows[VL * VECTOR] = {0};
    vi w[VL];
    for (size_t r = 0; r < VL; r++)
        memcpy(rows + r * VECTOR, src + r * stride, bytes < VECTOR ? (size_t)bytes : VECTOR);
    turn(rows, VECTOR, w);
    UNROLL for (int from = 0; from < steps; from += 8)
        UNROLL for (int j = from; j < from + 8; j++)
            vf_store(columns + j * VL, column(w, j));
}

#define TILE_ROWS_FLOAT(T, name, ...)                                             \
    APART void tile_##T##_##name(const ox_gemm_args *a, int64_t t0)               \
    {                                                                             \
        tile_rows_float(a, (rows_format){__VA_ARGS__, part_##name}, t0, T);       \
    }
#define GEMM_ROWS_FLOAT(name, turn, column, multiply_add, steps, ...)                                          \
    APART void part_##name(const uint8_t *src, size_t stride, int64_t bytes, float *columns)                   \
    {                                                                                                          \
        put_columns(turn, column, steps, src, stride, bytes, columns);                                         \
    }                                                                                                          \
    EACH_ROWS_TILE(TILE_ROWS_FLOAT, name, turn, column, multiply_add, steps, __VA_ARGS__)                      \
    IN_ROWS_TILES(name)
