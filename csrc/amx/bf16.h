/* Tiles of bfloat16: up to PASS tokens times one or two panels, whose weights are BF16 in panels, or were unpacked to
 * it.
 *
 * What an instruction does to an output is its order: from 32 columns, a chain of fused multiply-adds over the even
 * ones and one over the odd ones, each beginning with zero, whose sum is added to the output's. Values below 2^-126 are
 * taken for zeros. That is the same for any number of rows in a tile, and with weights and activations in each other's
 * place. After generic/q8.h. */
#ifndef OX_AMX_BF16_H
#define OX_AMX_BF16_H
#include <string.h>

enum {
    COLUMNS = 32,     /* of an instruction */
    LINE_BYTES = 64,  /* of a row in a tile */
    TILE_BYTES = 1024,
    TILE_ROWS = 16,
    PASS = 32,        /* tokens that share loaded weights */
    BLOCK = 16        /* tiles of columns that stay in the nearest cache while panels, or tokens, pass by */
};

/* Tiles 0 to 3: sums, tokens * 2 + panel; 4 and 5: activations; 6 and 7: weights. */
static __attribute__((unused)) void begin(int64_t n)
{
    const uint8_t first = (uint8_t)(n < TILE_ROWS ? n : TILE_ROWS), second = (uint8_t)(n - first);
    const uint8_t rows[8] = {first, first, second, second, first, second, TILE_ROWS, TILE_ROWS};
    tile_shapes s = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        s.rows[t] = rows[t];
        s.bytes[t] = rows[t] ? LINE_BYTES : 0;
    }
    tiles_begin(&s);
}

/* Activations of a pass: rows at a distance, and of the last columns, if they don't fill a tile, a copy with zeros. */
typedef struct { const uint8_t *x, *rest; size_t stride; } source;

/* The tile of weights at w, and that of the next panel, panel_bytes behind it; or those of `rest`. */
INLINE void load_weights(const uint8_t *w, size_t panel_bytes, const uint8_t *rest, const int panels)
{
    TILE_LOAD(6, rest ? rest : w, LINE_BYTES);
    if (panels > 1)
        TILE_LOAD(7, rest ? rest + TILE_BYTES : w + panel_bytes, LINE_BYTES);
}

INLINE void multiply(const uint8_t *x, size_t stride, const int tokens, const int panels)
{
    TILE_LOAD(4, x, stride);
    if (tokens > TILE_ROWS)
        TILE_LOAD(5, x + TILE_ROWS * stride, stride);
    TILE_DOT_BF16(0, 4, 6);
    if (panels > 1)
        TILE_DOT_BF16(1, 4, 7);
    if (tokens > TILE_ROWS)
        TILE_DOT_BF16(2, 5, 6);
    if (tokens > TILE_ROWS && panels > 1)
        TILE_DOT_BF16(3, 5, 7);
}

/* Sums of a panel, PASS tokens of 16 rows. */
typedef float park[PASS][16];

INLINE void load_sums(park *p, const int tokens, const int panels)
{
    TILE_LOAD(0, p[0], LINE_BYTES);
    if (panels > 1)
        TILE_LOAD(1, p[1], LINE_BYTES);
    if (tokens > TILE_ROWS)
        TILE_LOAD(2, p[0][TILE_ROWS], LINE_BYTES);
    if (tokens > TILE_ROWS && panels > 1)
        TILE_LOAD(3, p[1][TILE_ROWS], LINE_BYTES);
}

INLINE void store_sums(park *p, const int tokens, const int panels)
{
    TILE_STORE(0, p[0], LINE_BYTES);
    if (panels > 1)
        TILE_STORE(1, p[1], LINE_BYTES);
    if (tokens > TILE_ROWS)
        TILE_STORE(2, p[0][TILE_ROWS], LINE_BYTES);
    if (tokens > TILE_ROWS && panels > 1)
        TILE_STORE(3, p[1][TILE_ROWS], LINE_BYTES);
}

/* n tiles of columns of PASS tokens and two panels. All eight tiles are in use, so that each is loaded again as soon as
 * its last product has begun: 1.05 to 1.1 times as fast as four loads and then four products. */
INLINE void multiply_four(const uint8_t *w, size_t panel_bytes, const uint8_t *x, size_t stride, int64_t n)
{
    const uint8_t *w1 = w + panel_bytes, *x1 = x + TILE_ROWS * stride;
    TILE_LOAD(4, x, stride);
    TILE_LOAD(6, w, LINE_BYTES);
    TILE_LOAD(7, w1, LINE_BYTES);
    TILE_LOAD(5, x1, stride);
    for (int64_t i = 1; i < n; i++) {
        TILE_DOT_BF16(0, 4, 6);
        TILE_DOT_BF16(1, 4, 7);
        TILE_LOAD(4, x + i * LINE_BYTES, stride);
        TILE_DOT_BF16(2, 5, 6);
        TILE_LOAD(6, w + i * TILE_BYTES, LINE_BYTES);
        TILE_DOT_BF16(3, 5, 7);
        TILE_LOAD(7, w1 + i * TILE_BYTES, LINE_BYTES);
        TILE_LOAD(5, x1 + i * LINE_BYTES, stride);
    }
    TILE_DOT_BF16(0, 4, 6);
    TILE_DOT_BF16(1, 4, 7);
    TILE_DOT_BF16(2, 5, 6);
    TILE_DOT_BF16(3, 5, 7);
}

/* n whole tiles of columns, and the `rest` of weights behind them if there is any. `ahead`: weights come from memory,
 * and are asked for, which pays for up to TILE_ROWS tokens, and for the first of two panels. */
INLINE void block(const uint8_t *w, size_t panel_bytes, const uint8_t *rest, const source *x, int64_t n, int first,
                  int ahead, park *p, const int tokens, const int panels)
{
    if (first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        if (tokens > TILE_ROWS) {
            TILE_ZERO(2);
            TILE_ZERO(3);
        }
    } else {
        load_sums(p, tokens, panels);
    }
    if (tokens > TILE_ROWS && panels > 1 && n > 0)
        multiply_four(w, panel_bytes, x->x, x->stride, n);
    else
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *tile = w + i * TILE_BYTES;
            for (int line = 0; ahead && line < TILE_BYTES; line += LINE_BYTES)
                __builtin_prefetch(tile + AHEAD + line, 0, 2);
            load_weights(tile, panel_bytes, NULL, panels);
            multiply(x->x + i * LINE_BYTES, x->stride, tokens, panels);
        }
    if (rest) {
        load_weights(NULL, 0, rest, panels);
        multiply(x->rest, LINE_BYTES, tokens, panels);
    }
    store_sums(p, tokens, panels);
}

/* The same of so many tokens and panels. */
static __attribute__((unused)) void blocks(const uint8_t *w, size_t panel_bytes, const uint8_t *rest, const source *x,
                                           int64_t n, int first, int ahead, park *p, int64_t tokens, int64_t panels)
{
    if (tokens > TILE_ROWS && panels > 1)
        block(w, panel_bytes, rest, x, n, first, ahead, p, PASS, 2);
    else if (tokens > TILE_ROWS)
        block(w, panel_bytes, rest, x, n, first, ahead, p, PASS, 1);
    else if (panels > 1)
        block(w, panel_bytes, rest, x, n, first, ahead, p, TILE_ROWS, 2);
    else
        block(w, panel_bytes, rest, x, n, first, ahead, p, TILE_ROWS, 1);
}

enum { ROW_STRIDE = BLOCK * LINE_BYTES + LINE_BYTES }; /* off a power of two, so that rows fall into different sets */

/* Activations of tiles i to i + n - 1 of tokens t0 to t0 + count - 1, copied where they don't lie in order. */
INLINE source source_of(const ox_gemm_args *a, int64_t t0, int64_t count, int64_t i, int64_t n, uint8_t *copy)
{
    source s = {(const uint8_t *)a->x + (size_t)t0 * a->x_bytes + i * LINE_BYTES, NULL, a->x_bytes};
    if (!a->x_rows)
        return s;
    for (int64_t t = 0; t < count; t++)
        memcpy(copy + t * ROW_STRIDE, x_of(a, t0 + t) + i * LINE_BYTES, (size_t)n * LINE_BYTES);
    return (source){copy, NULL, ROW_STRIDE};
}

INLINE void store_park(const ox_gemm_args *a, int64_t t0, int64_t n, int64_t row, park p)
{
    for (int64_t t = 0; t < n; t++)
        store_rows(y_of(a, t0 + t, row), vf_load(p[t]), a->n_rows - row, a->accumulate);
}

#endif
