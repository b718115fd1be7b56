/* Products of BF16 weights with activations rounded to bfloat16, on tiles: up to PASS tokens times two panels at once.
 *
 * What an instruction does to an output is its order: from 32 columns, a chain of fused multiply-adds over the even
 * ones and one over the odd ones, each beginning with zero, whose sum is added to the output's. Values below 2^-126 are
 * taken for zeros. That is the same for any number of rows in a tile, and with weights and activations in each other's
 * place, so that every number of tokens, and the rows as they are stored, go through it. Columns behind the last are
 * zeros. */
#include "../ox_dispatch.h"
#include <string.h>
#include "vocab.h"
#include "../generic/q8.h"
#include "../generic/few_rows.h"

enum {
    COLUMNS = 32,     /* of an instruction */
    LINE_BYTES = 64,  /* of a row in a tile */
    TILE_BYTES = 1024,
    TILE_ROWS = 16,
    PASS = 32,        /* tokens that share loaded weights */
    BLOCK = 16,       /* tiles of columns of a pass, which stay in the nearest cache while panels pass by */
    RUN = 16          /* panels that a pass of many tokens goes through for a block */
};

/* Tiles 0 to 3: sums, tokens * 2 + panel; 4 and 5: activations; 6 and 7: weights. */
static void begin(int64_t n)
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
static void blocks(const uint8_t *w, size_t panel_bytes, const uint8_t *rest, const source *x, int64_t n, int first,
                   int ahead, park *p, int64_t tokens, int64_t panels)
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

/* Lanes behind the last pair of a tile are zeros. */
static void copy_rest(uint8_t *to, const uint8_t *from, size_t bytes, size_t of)
{
    memcpy(to, from, bytes);
    memset(to + bytes, 0, of - bytes);
}

/* The matrix in whole tiles of columns, and the pairs that are left, of which the last may be half there. */
typedef struct { int64_t tiles, left; } columns;
static columns columns_of(const ox_gemm_args *a)
{
    return (columns){a->k / COLUMNS, (a->k % COLUMNS + 1) / 2};
}

/* Memory for one pass. */
typedef struct {
    uint8_t copy[PASS * ROW_STRIDE], x_rest[PASS * LINE_BYTES], w_rest[2 * TILE_BYTES];
    park sums[RUN];
} pass_room;

/* Panels from `row` on, up to RUN of them, times a block of columns. */
static void panels_of_block(const ox_gemm_args *a, const source *x, int64_t row, int64_t n_panels, int64_t i, int64_t n,
                            const columns *c, int64_t tokens, int ahead, pass_room *m)
{
    const int last = c->left && i + n == c->tiles;
    const uint8_t *w = (const uint8_t *)a->w + (size_t)(row / 16) * a->panel_bytes + i * TILE_BYTES;
    for (int64_t p = 0, step; p < n_panels; p += step, w += (size_t)step * a->panel_bytes) {
        step = p + 2 <= n_panels ? 2 : 1;
        for (int64_t j = 0; last && j < step; j++)
            copy_rest(m->w_rest + j * TILE_BYTES, w + (size_t)j * a->panel_bytes + n * TILE_BYTES,
                      (size_t)c->left * LINE_BYTES, TILE_BYTES);
        blocks(w, a->panel_bytes, last ? m->w_rest : NULL, x, n, i == 0, ahead, m->sums + p, tokens, step);
    }
}

/* Up to PASS tokens times all panels, two at a time: with one, each product of few tokens waits for the sum of the one
 * before, and weights in a cache took 1.3 times as long. Few tokens that lie in order go through them from end to end,
 * as they lie in memory; others go through a block of columns of RUN panels, and the next one. */
static void pass(const ox_gemm_args *a, int64_t t0, int64_t n)
{
    pass_room m;
    const columns c = columns_of(a);
    const int64_t most = n > TILE_ROWS || a->x_rows || c.tiles == 0 ? BLOCK : c.tiles;
    for (int64_t t = 0; t < n; t++)
        copy_rest(m.x_rest + t * LINE_BYTES, x_of(a, t0 + t) + c.tiles * LINE_BYTES, (size_t)c.left * 4, LINE_BYTES);
    begin(n);
    for (int64_t row = 0; row < a->n_rows; row += 16 * RUN) {
        const int64_t left = (a->n_rows - row + 15) / 16, n_panels = left < RUN ? left : RUN;
        for (int64_t i = 0; i == 0 || i < c.tiles; i += most) {
            const int64_t tiles = c.tiles - i < most ? c.tiles - i : most;
            source x = source_of(a, t0, n, i, tiles, m.copy);
            x.rest = m.x_rest;
            panels_of_block(a, &x, row, n_panels, i, tiles, &c, n, t0 == 0, &m);
        }
        for (int64_t p = 0; p < n_panels; p++)
            store_park(a, t0, n, row + 16 * p, m.sums[p]);
    }
    tiles_end();
}

static void gemm_bf16(const ox_gemm_args *a)
{
    for (int64_t t = 0; t < a->n_tokens; t += PASS)
        pass(a, t, a->n_tokens - t < PASS ? a->n_tokens - t : PASS);
}

/* 16 rows as files store them are a tile of weights as they lie, for which a token's activations stand on end: a column
 * of pairs. Sums of up to four tokens in tiles 0 to 3, weights in 4, activations in 5. */
static void begin_rows(void)
{
    tile_shapes s = {.palette = 1, .bytes = {4, 4, 4, 4, LINE_BYTES, 4}};
    memset(s.rows, TILE_ROWS, 6);
    tiles_begin(&s);
}

#define EACH_TOKEN(f) f(0) f(1) f(2) f(3)
INLINE void multiply_rows(const uint8_t *w, size_t stride, const uint8_t *const *x, int64_t at, const int T)
{
    TILE_LOAD(4, w, stride);
#define MULTIPLY(t)                   \
    if (t < T) {                      \
        TILE_LOAD(5, x[t] + at, 4);   \
        TILE_DOT_BF16(t, 4, 5);       \
    }
    EACH_TOKEN(MULTIPLY)
#undef MULTIPLY
}

INLINE void panel_of_rows(const ox_gemm_args *a, const uint8_t *w, const uint8_t *const *x, const uint8_t *const *rest,
                          const columns *c, const int T, float (*sums)[16])
{
    const size_t stride = a->panel_bytes / 16;
    const uint8_t *next = w + a->panel_bytes;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t i = 0; i < c->tiles; i++, next += TILE_BYTES) {
        fetch_page(next);
        for (int line = 0; line < TILE_BYTES; line += LINE_BYTES)
            fetch_line(next + line);
        multiply_rows(w + i * LINE_BYTES, stride, x, i * LINE_BYTES, T);
    }
    if (c->left) {
        uint8_t copy[TILE_BYTES];
        for (size_t r = 0; r < TILE_ROWS; r++)
            copy_rest(copy + r * LINE_BYTES, w + r * stride + c->tiles * LINE_BYTES,
                      (size_t)a->k * 2 - (size_t)c->tiles * LINE_BYTES, LINE_BYTES);
        multiply_rows(copy, LINE_BYTES, rest, 0, T);
    }
#define STORE(t) TILE_STORE(t, sums[t], 4);
    EACH_TOKEN(STORE)
#undef STORE
}

INLINE void tile_rows(const ox_gemm_args *a, int64_t t0, const int T)
{
    const columns c = columns_of(a);
    const uint8_t *x[ROWS_TILE], *rest[ROWS_TILE], *w = a->w;
    uint8_t room[ROWS_TILE][LINE_BYTES];
    for (int t = 0; t < T; t++) {
        x[t] = x_of(a, t0 + t);
        rest[t] = room[t];
        copy_rest(room[t], x[t] + c.tiles * LINE_BYTES, (size_t)c.left * 4, LINE_BYTES);
    }
    begin_rows();
    for (int64_t row = 0; row < a->n_rows; row += 16, w += a->panel_bytes) {
        float sums[ROWS_TILE][16];
        panel_of_rows(a, w, x, rest, &c, T, sums);
        for (int t = 0; t < T; t++)
            store_rows(y_of(a, t0 + t, row), vf_load(sums[t]), 16, a->accumulate);
    }
    tiles_end();
}

#define TILE_ROWS_BF16(T, name) \
    APART void tile_##T##_##name(const ox_gemm_args *a, int64_t t0) { tile_rows(a, t0, T); }
EACH_ROWS_TILE(TILE_ROWS_BF16, bf16)
IN_ROWS_TILES(bf16)

void ox_amx_gemm_bf16(ox_kernels *t)
{
    t->gemm_bf16 = gemm_bf16;
    t->gemm_bf16_rows = gemm_rows_bf16;
}
