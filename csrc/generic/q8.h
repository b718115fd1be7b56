/* Integer matrix products of packed panels: activations in 8 bits, weights as unsigned codes of up to 8 bits.
 *
 * One accumulator per output, chunks of 32 columns added in order: the result can't depend on how many tokens share a
 * tile. A format unpacks a chunk to eight byte vectors and its scales. A tile of up to TILE tokens uses them straight
 * from registers; for more tokens, where unpacking is slow, 256 columns are unpacked to the first-level cache and serve
 * GROUP of them, whose sums wait in memory meanwhile. Both ways add the same numbers in the same order.
 * Included by each SIMD tier after its vocab.h. */
#include "../ox_blocks.h"
#include "../ox_dispatch.h"
#include "inline.h"

#define LOAD_F32(p) vf_set1(*(const float *)(p))
#define LOAD_I32(p) vi_set1(*(const int32_t *)(p))
#ifndef DOT_TOKENS
#define DOT_TOKENS 1
#endif

#include "q8_forms.h"

INLINE void unpack_nibbles(const uint8_t qs[4][64], int half, vb *w)
{
    UNROLL for (int v = 0; v < 4; v++) {
        vb q = vb_load(qs[v] + half * VB);
        w[v] = vb_and(q, vb_set1(15));
        w[v + 4] = vb_and(vb_shr(q, 4), vb_set1(15));
    }
}

/* Bit v of `high` becomes the fifth bit of vector v. */
INLINE void unpack_fives(const uint8_t qs[4][64], const uint8_t qh[64], int half, vb *w)
{
    vb high = vb_load(qh + half * VB), bit4 = vb_set1(16);
    unpack_nibbles(qs, half, w);
    UNROLL for (int v = 0; v < 8; v++)
        w[v] = vb_or(w[v], vb_and(v < 4 ? vb_shl(high, 4 - v) : vb_shr(high, v - 4), bit4));
}

INLINE vf vf_from_u8(const uint8_t *p) { return vf_from_int(vi_from_u8(p)); }

/* Chunk i of a packed block: the codes and scales of the rows of one half (or whole) of a panel. */
typedef void unpack_fn(const void *block, int i, int half, chunk *c);

INLINE void unpack_Q4_0(const void *block, int i, int half, chunk *c)
{
    const ox_q4_0x16 *b = block;
    (void)i;
    unpack_nibbles(b->qs, half, c->w);
    c->scale = vf_from_half(b->d + half * VL);
}

INLINE void unpack_Q4_1(const void *block, int i, int half, chunk *c)
{
    const ox_q4_1x16 *b = block;
    (void)i;
    unpack_nibbles(b->qs, half, c->w);
    c->scale = vf_from_half(b->d + half * VL);
    c->second = vf_sub(vf_zero(), vf_from_half(b->m + half * VL));
}

INLINE void unpack_Q5_0(const void *block, int i, int half, chunk *c)
{
    const ox_q5_0x16 *b = block;
    (void)i;
    unpack_fives(b->qs, b->qh, half, c->w);
    c->scale = vf_from_half(b->d + half * VL);
}

INLINE void unpack_Q5_1(const void *block, int i, int half, chunk *c)
{
    const ox_q5_1x16 *b = block;
    (void)i;
    unpack_fives(b->qs, b->qh, half, c->w);
    c->scale = vf_from_half(b->d + half * VL);
    c->second = vf_sub(vf_zero(), vf_from_half(b->m + half * VL));
}

INLINE void unpack_Q8_0(const void *block, int i, int half, chunk *c)
{
    const ox_q8_0x16 *b = block;
    (void)i;
    UNROLL for (int v = 0; v < 8; v++)
        c->w[v] = vb_xor(vb_load(b->qs[v] + half * VB), vb_set1((char)(0x80 ^ BYTE_SIGN)));
    c->scale = vf_from_half(b->d + half * VL);
}

INLINE void unpack_Q4_K(const void *block, int i, int half, chunk *c)
{
    const ox_q4_kx16 *b = block;
    unpack_nibbles(b->qs[i], half, c->w);
    c->scale = vf_mul(vf_from_half(b->d + half * VL), vf_from_u8(b->scales[i] + half * VL));
    c->second = vf_mul(vf_from_half(b->dmin + half * VL), vf_from_u8(b->mins[i] + half * VL));
}

INLINE void unpack_Q5_K(const void *block, int i, int half, chunk *c)
{
    const ox_q5_kx16 *b = block;
    unpack_fives(b->chunks[i].qs, b->chunks[i].qh, half, c->w);
    c->scale = vf_mul(vf_from_half(b->d + half * VL), vf_from_u8(b->scales[i] + half * VL));
    c->second = vf_mul(vf_from_half(b->dmin + half * VL), vf_from_u8(b->mins[i] + half * VL));
}

INLINE void unpack_Q6_K(const void *block, int i, int half, chunk *c)
{
    const ox_q6_kx16 *b = block;
    vb high[2] = {vb_load(b->chunks[i].qh[0] + half * VB), vb_load(b->chunks[i].qh[1] + half * VB)};
    vb top = vb_set1(0x30);
    unpack_nibbles(b->chunks[i].qs, half, c->w);
    UNROLL for (int v = 0; v < 8; v++) { /* bits 2s, 2s+1 go to bits 4, 5 */
        int s = 2 * (v / 2);
        c->w[v] = vb_or(c->w[v], vb_and(s < 4 ? vb_shl(high[v % 2], 4 - s) : vb_shr(high[v % 2], s - 4), top));
    }
    c->scale = vf_from_half(b->d + half * VL);
    UNROLL for (int h = 0; h < 2; h++)
        c->s[h] = vi_from_i8(b->scales[2 * i + h] + half * VL);
}

/* Part of a panel's rows may lie beyond the matrix: n of them are stored. */
INLINE void store_rows(float *y, vf acc, int64_t n, int accumulate)
{
    if (n >= VL) {
        vf_store(y, accumulate ? vf_add(vf_load(y), acc) : acc);
        return;
    }
    float part[VL];
    vf_store(part, acc);
    for (int64_t r = 0; r < n; r++)
        y[r] = accumulate ? y[r] + part[r] : part[r];
}

INLINE float *y_of(const ox_gemm_args *a, int64_t t, int64_t row)
{
    return a->y + (size_t)(a->y_rows ? a->y_rows[t] : t) * a->y_stride + row;
}

INLINE const uint8_t *x_of(const ox_gemm_args *a, int64_t t)
{
    return (const uint8_t *)a->x + (size_t)(a->x_rows ? a->x_rows[t] : t) * a->x_bytes;
}

/* The sums of one panel for n tokens, those of a half of it `apart` from the other's. Not inlined: copies for each
 * size of a tile took the compiler longer than its products. */
static __attribute__((noinline, unused)) void store_panel(const ox_gemm_args *a, int64_t t0, int64_t n, int64_t row,
                                                          int64_t apart, const vf *acc)
{
    if (a->n_rows - row >= 16 && !a->accumulate)
        for (int64_t t = 0; t < n; t++)
            UNROLL for (int half = 0; half < NV; half++)
                vf_store(y_of(a, t0 + t, row) + half * VL, acc[half * apart + t]);
    else
        for (int half = 0; half < NV; half++, row += VL)
            for (int64_t t = 0; t < n; t++)
                store_rows(y_of(a, t0 + t, row), acc[half * apart + t], a->n_rows - row, a->accumulate);
}

/* A format as the drivers below see it: all of it is constant where it is used. */
typedef struct { unpack_fn *unpack; int64_t bytes; int chunks; q8_form form; } q8_format;

/* Asks for what lies AHEAD bytes behind chunk i of a block, since hardware prefetching falls behind where a tile takes
 * long over a chunk: eight tokens of Q4_0 ran at 400 GOPS instead of 640 on two Zen 4 cores. To the second level, since
 * the first one holds the activations: eight tokens of Q8_0 run at 570 GOPS instead of 430. Fewer tokens than
 * FETCH_FROM ask only for weights from memory, and where ox_fetch_for_few is set: each request holds one of a core's
 * few miss buffers, which capped one token at 40 GB/s on Zen 4, where plain reading reached 68. Formats whose unpacking
 * is slow always ask. */
#define AHEAD 8192
#define FETCH_FROM 4
#ifndef UNPACKING_IS_SLOW
#define UNPACKING_IS_SLOW 0
#endif
INLINE void fetch(const q8_format f, const uint8_t *block, int i)
{
    const int64_t part = f.bytes / f.chunks;
    UNROLL for (int64_t j = 0; j < part; j += 64)
        __builtin_prefetch(block + AHEAD + i * part + j, 0, 2);
}

/* Chunks i to `to` - 1 of one half (or whole) of a panel, each from registers. */
INLINE void strip_q8(const q8_format f, const uint8_t *panel, int half, const q8_tile *x, int64_t i, int64_t to,
                     int ahead, const int T, vf *acc)
{
    vf sum[TILE];
    UNROLL for (int t = 0; t < T; t++)
        sum[t] = acc[t];
    for (const uint8_t *block = panel + i / f.chunks * f.bytes; i < to; i += f.chunks, block += f.bytes)
        for (int j = 0; j < f.chunks; j++) {
            chunk c;
            if (half == 0 && (T >= FETCH_FROM || ahead))
                fetch(f, block, j);
            f.unpack(block, j, half, &c);
            add_chunk(f.form, &c, x, i + j, T, sum);
        }
    UNROLL for (int t = 0; t < T; t++)
        acc[t] = sum[t];
}

/* One tile of tokens against all panels from `row` on. Where a panel is two halves, they take turns at strips of it:
 * memory is read once, in order, and the second finds its share in the first-level cache. Of more than two tokens,
 * both pass through one copy of the body: it takes the compiler long, and sums that wait in memory for a strip cost
 * less than a hundredth. */
INLINE void tile_q8(const ox_gemm_args *a, const q8_format f, int64_t t0, int64_t row, const int T)
{
    q8_tile x = {.k = a->k, .nb = a->k / OX_CHUNK};
    UNROLL for (int t = 0; t < T; t++)
        x.x[t] = x_of(a, t0 + t);
    const uint8_t *panel = (const uint8_t *)a->w + (size_t)(row / 16) * a->panel_bytes;
    const int64_t strip = NV > 1 ? STEP : x.nb;
    const int ahead = t0 == 0 && a->from_memory && ox_fetch_for_few; /* for the first tile; the others find them near */
    for (; row < a->n_rows; row += 16, panel += a->panel_bytes) {
        vf acc[NV][TILE];
        UNROLL for (int j = 0; j < NV * T; j++)
            acc[j / T][j % T] = vf_zero();
        for (int64_t i = 0; i < x.nb; i += strip)
            if (T <= 2)
                UNROLL for (int half = 0; half < NV; half++)
                    strip_q8(f, panel, half, &x, i, x.nb - i < strip ? x.nb : i + strip, ahead, T, acc[half]);
            else
                for (int half = 0; half < NV; half++)
                    strip_q8(f, panel, half, &x, i, x.nb - i < strip ? x.nb : i + strip, ahead, T, acc[half]);
        store_panel(a, t0, T, row, TILE, acc[0]);
    }
}

/* A whole tile of tokens against TILE_PANELS panels at a time, which share each load of the tokens' codes; their sums
 * wait in memory for a chunk. Returns the row behind the last of so many. Where two vectors are multiplied and added in
 * a cycle, and two loaded, loads take longer than products: Q8_0 runs at 1.1 times the speed on Zen 5, and at 1.22 on
 * Emerald Rapids, Q4_0 at 1.04 and 1.13, Q5_0 at 1.04 and 1.05; on Zen 4, which multiplies one, at 0.95 to 0.97, 0.93
 * and 0.9, so that the tier says by PANELS_TOGETHER when it pays. With Q4_K, whose sums take a second product, it was
 * 0.98 on Zen 5, and so that stays with one panel. Not for the first tile of tokens, which has the panels brought into
 * the second-level cache: two streams from memory take 1.5 times as long as one. */
INLINE int64_t panels_q8(const ox_gemm_args *a, const q8_format f, int64_t t0)
{
    q8_tile x = {.k = a->k, .nb = a->k / OX_CHUNK};
    UNROLL for (int t = 0; t < TILE; t++)
        x.x[t] = x_of(a, t0 + t);
    const uint8_t *panel = a->w;
    int64_t row = 0;
    for (; a->n_rows - row > 16 * (TILE_PANELS - 1); row += 16 * TILE_PANELS, panel += TILE_PANELS * a->panel_bytes) {
        vf acc[TILE_PANELS][TILE];
        UNROLL for (int j = 0; j < TILE_PANELS * TILE; j++)
            acc[j / TILE][j % TILE] = vf_zero();
        const uint8_t *block = panel;
        for (int64_t i = 0; i < x.nb; i += f.chunks, block += f.bytes)
            for (int j = 0; j < f.chunks; j++) {
                chunk c[TILE_PANELS];
                UNROLL for (int p = 0; p < TILE_PANELS; p++)
                    f.unpack(block + (size_t)p * a->panel_bytes, j, 0, c + p);
                add_chunks(f.form, c, &x, i + j, acc[0]);
            }
        UNROLL for (int p = 0; p < TILE_PANELS; p++)
            store_panel(a, t0, TILE, row + 16 * p, TILE, acc[p]);
    }
    return row;
}

typedef void add_group_fn(const chunk *c, int64_t n, const q8_tile *x, int64_t i, int64_t n_tokens, vf *acc);
#ifdef HAVE_TILES
#include "q8_tiles.h"
#endif

/* Chunks i to i + n - 1 for a tile of tokens whose sums are in memory. */
INLINE void add_steps(const q8_form f, const chunk *c, int n, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    vf sum[TILE];
#ifdef HAVE_PAIRS
    const q8_tile own = paired_tile(x);
    x = &own;
#endif
    UNROLL for (int t = 0; t < T; t++)
        sum[t] = acc[t];
    for (int j = 0; j < n; j++)
        add_chunk(GROUP_FORM(f), c + j, x, i + j, T, sum);
    UNROLL for (int t = 0; t < T; t++)
        acc[t] = sum[t];
}

/* Unpacks up to STEP chunks, whose places in their blocks are constants in each copy of the body. */
INLINE void unpack_steps(const q8_format f, const uint8_t *panel, int64_t i, int64_t n, int half, int ahead, chunk *c)
{
    const uint8_t *first = panel + i / f.chunks * f.bytes;
    UNROLL for (int j = 0; j < STEP; j++)
        if (j < n) {
            const uint8_t *block = first + j / f.chunks * f.bytes;
            if (half == 0 && ahead)
                fetch(f, block, j % f.chunks);
            f.unpack(block, j % f.chunks, half, c + j);
#ifdef HAVE_PAIRS
            pair_rows(c[j].w, offset_of(f.form));
#endif
#ifdef HAVE_TILES
            tile_chunk(c + j, f.form);
#endif
        }
}

/* Chunks i to i + steps - 1 of a panel for a group, each half from memory. */
INLINE void add_panel(const q8_format f, const uint8_t *panel, const q8_tile *x, int64_t i, int64_t steps, int64_t n,
                      int ahead, add_group_fn *add_group, vf (*acc)[GROUP])
{
    for (int half = 0; half < NV; half++) {
        chunk c[STEP];
        unpack_steps(f, panel, i, steps, half, ahead, c);
        add_group(c, steps, x, i, n, acc[half]);
    }
}

/* Panels that a group is taken through together: as many as pay for its pairs, or for its copies. */
#ifdef HAVE_PAIRS
#define GROUP_PANELS 4
#elif defined(HAVE_TILES)
#define GROUP_PANELS 8
#else
#define GROUP_PANELS 1
#endif

/* Up to GROUP tokens against all panels, each step from memory. */
INLINE void group_q8(const ox_gemm_args *a, const q8_format f, int64_t t0, int64_t n, add_group_fn *add_group)
{
    q8_tile x[GROUP / TILE];
    const int ahead = n >= FETCH_FROM || UNPACKING_IS_SLOW || (t0 == 0 && a->from_memory && ox_fetch_for_few);
    for (int64_t t = 0; t < n; t++) {
        x[t / TILE].k = a->k;
        x[t / TILE].nb = a->k / OX_CHUNK;
        x[t / TILE].x[t % TILE] = x_of(a, t0 + t);
    }
#ifdef HAVE_PAIRS
    uint8_t pairs[GROUP / TILE][PAIR_BYTES];
    for (int64_t t = 0; t < n; t += TILE)
        x[t / TILE].pairs = pairs[t / TILE];
#endif
#ifdef HAVE_TILES
    tile_copies copies;
    begin_tiles(n);
#endif
    const uint8_t *panel = a->w;
    for (int64_t row = 0; row < a->n_rows; row += 16 * GROUP_PANELS, panel += GROUP_PANELS * a->panel_bytes) {
        const int64_t left = (a->n_rows - row + 15) / 16, panels = left < GROUP_PANELS ? left : GROUP_PANELS;
        vf acc[GROUP_PANELS][NV][GROUP];
        for (int64_t j = 0; j < panels * NV * n; j++)
            acc[j / (NV * n)][j / n % NV][j % n] = vf_zero();
        for (int64_t i = 0, nb = a->k / OX_CHUNK; i < nb; i += STEP) {
            const int64_t steps = nb - i < STEP ? nb - i : STEP;
#ifdef HAVE_PAIRS
            pair_tokens(x, n, i, steps);
#endif
#ifdef HAVE_TILES
            tile_tokens(a, f.form, x, n, i, steps, &copies);
#endif
            for (int64_t p = 0; p < panels; p++)
                add_panel(f, panel + (size_t)p * a->panel_bytes, x, i, steps, n, ahead, add_group, acc[p]);
        }
        for (int64_t p = 0; p < panels; p++)
            store_panel(a, t0, n, row + 16 * p, GROUP, acc[p][0]);
    }
#ifdef HAVE_TILES
    tiles_end();
#endif
}

/* Each size of a tile is a function of its own, in which the number of tokens is a constant, so that the
 * accumulators live in registers: the compiler takes more than twice as long over one of eight times the length. */
#define EACH_TILE(f, ...) \
    f(1, __VA_ARGS__) f(2, __VA_ARGS__) f(3, __VA_ARGS__) f(4, __VA_ARGS__) \
    f(5, __VA_ARGS__) f(6, __VA_ARGS__) f(7, __VA_ARGS__) f(8, __VA_ARGS__)

#define TILE_Q8(T, name, unpack, bytes, chunks, form)                                  \
    APART void tile_##T##_##name(const ox_gemm_args *a, int64_t t0, int64_t row)       \
    {                                                                                  \
        tile_q8(a, (q8_format){unpack, bytes, chunks, form_##form()}, t0, row, T);     \
    }
#define CALL_TILE(T, name) case T: tile_##T##_##name(a, t, row); break;
/* Tokens whose chunks stay in registers. `more` takes further tiles through panels together, or is no_panels. */
#define TILES_Q8(name, more, ...)                                                    \
    EACH_TILE(TILE_Q8, name, __VA_ARGS__)                                            \
    APART void tiles_##name(const ox_gemm_args *a)                                   \
    {                                                                                \
        for (int64_t t = 0; t < a->n_tokens; t += TILE) {                            \
            const int64_t row = t > 0 && a->n_tokens - t >= TILE ? more(a, t) : 0;   \
            switch (a->n_tokens - t < TILE ? a->n_tokens - t : TILE) {               \
            EACH_TILE(CALL_TILE, name)                                               \
            }                                                                        \
        }                                                                            \
    }
INLINE int64_t no_panels(const ox_gemm_args *a, int64_t t0)
{
    (void)a, (void)t0;
    return 0;
}

#ifdef HAVE_TILES
#define ADD_GROUP_Q8(name) /* q8_tiles.h has them */
#else
#define STEPS_Q8(T, name)                                                                          \
    APART void steps_##T##_##name(const chunk *c, int n, const q8_tile *x, int64_t i, vf *acc)     \
    {                                                                                              \
        add_steps(form_##name(), c, n, x, i, T, acc);                                              \
    }
#define CALL_STEPS(T, name) case T: steps_##T##_##name(c, (int)n, x, i, acc + t); break;
/* The sums of unpacked chunks depend on the form alone: one function for all formats of a file that have it, unused
 * where chunks of all of them stay in registers. */
#define ADD_GROUP_Q8(name)                                                                         \
    EACH_TILE(STEPS_Q8, name)                                                                      \
    static __attribute__((noinline, unused)) void add_group_##name(                                \
        const chunk *c, int64_t n, const q8_tile *x, int64_t i, int64_t n_tokens, vf *acc)         \
    {                                                                                              \
        for (int64_t t = 0; t < n_tokens; t += TILE, x++)                                          \
            switch (n_tokens - t < TILE ? n_tokens - t : TILE) {                                   \
            EACH_TILE(CALL_STEPS, name)                                                            \
            }                                                                                      \
    }
#endif
#define FORM_Q8(name, form)                                                                        \
    INLINE q8_form form_##name(void) { return form; }                                              \
    ADD_GROUP_Q8(name)

/* Tokens whose chunks are unpacked once to memory. */
#define GROUPS_Q8(name, unpack, bytes, chunks, form)                                               \
    APART void groups_##name(const ox_gemm_args *a)                                                \
    {                                                                                              \
        const q8_format f = {unpack, bytes, chunks, form_##form()};                                \
        for (int64_t t = 0, n = a->n_tokens; t < n; t += GROUP)                                    \
            group_q8(a, f, t, n - t < GROUP ? n - t : GROUP, add_group_##form);                    \
    }

#ifdef HAVE_TILES
#include "gemm_tiles.h"
#else
/* When a chunk's vectors stay in registers: always, where they are quickly unpacked again for the next tile; for one
 * tile only; never, where unpacking costs more than the products of a tile, so that one copy of it should do. In the
 * tiers avx2, avx_vnni and avx512 of Emerald Rapids ONE_TILE takes 0.87 to 0.98 of the time of ALWAYS for twelve tokens
 * and more of Q5_K and Q5_1, and 0.93 to 1.02 of IQ4_XS; NEVER takes 0.75 to 0.95 of the time of ONE_TILE for up to
 * eight tokens of Q3_K, and up to 1.12 for one of Q2_K and TQ2_0, 1.25 of NVFP4, 1.4 of Q6_K. Not measured on AMD and
 * ARM. Pairs are made from memory. TOGETHER is ALWAYS for formats whose panels a whole tile may take TILE_PANELS at a
 * time. */
#define GEMM_NEVER(name, ...) \
    GROUPS_Q8(name, __VA_ARGS__) static void gemm_##name(const ox_gemm_args *a) { groups_##name(a); }
#define GEMM_ONE_TILE(name, ...)                      \
    TILES_Q8(name, no_panels, __VA_ARGS__)            \
    GROUPS_Q8(name, __VA_ARGS__)                      \
    static void gemm_##name(const ox_gemm_args *a)    \
    {                                                 \
        if (a->n_tokens <= TILE)                      \
            tiles_##name(a);                          \
        else                                          \
            groups_##name(a);                         \
    }
#ifdef HAVE_PAIRS
#define GEMM_ALWAYS GEMM_ONE_TILE
#else
#define GEMM_ALWAYS(name, ...) \
    TILES_Q8(name, no_panels, __VA_ARGS__) static void gemm_##name(const ox_gemm_args *a) { tiles_##name(a); }
#endif
#if TILE_PANELS > 1
#if NV != 1 || defined(DOT_IS_7_BIT) || defined(HAVE_DOTS) || defined(HAVE_PAIRS)
#error "panels go through a tile together only where a panel is one vector, and vi_dot one instruction for all bytes"
#endif
#define GEMM_TOGETHER(name, unpack, bytes, chunks, form)                                                        \
    static __attribute__((noinline)) int64_t panels_##name(const ox_gemm_args *a, int64_t t0)                   \
    {                                                                                                           \
        return PANELS_TOGETHER ? panels_q8(a, (q8_format){unpack, bytes, chunks, form_##form()}, t0) : 0;       \
    }                                                                                                           \
    TILES_Q8(name, panels_##name, unpack, bytes, chunks, form)                                                  \
    static void gemm_##name(const ox_gemm_args *a) { tiles_##name(a); }
#else
#define GEMM_TOGETHER GEMM_ALWAYS
#endif
#endif

/* The product of a format: its packed block, chunks in one, form, and when they stay in registers. */
#define GEMM_Q8(name, block, chunks, form, when) GEMM_##when(name, unpack_##name, sizeof(ox_##block##x16), chunks, form)
