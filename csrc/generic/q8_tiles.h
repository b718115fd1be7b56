/* Groups of tokens where the CPU multiplies whole tiles of 16 tokens with a chunk of a panel, and leaves sums of
 * integers in memory. Offsets are taken off the codes when a chunk is unpacked, and scales of halves multiplied into
 * them: what is added to an output, and in what order, is that of the tier's products of few tokens, which `few` holds.
 * Included by q8.h. */

#include <string.h>

/* A half's scale times a code takes up to 14 bits: those in w, and 1 << HIGH_BITS times those in `more`. */
#define HIGH_BITS 7

/* A chunk's codes as signed bytes, as the form of a format means them. */
INLINE void tile_chunk(chunk *c, const q8_form f)
{
    if (has_offset(f))
        UNROLL for (int v = 0; v < 8; v++)
            c->w[v] = vb_sub(c->w[v], vb_set1((char)offset_of(f)));
    if (f.add == ADD_BYTES)
        UNROLL for (int v = 0; v < 8; v++)
            c->w[v] = vb_xor(c->w[v], vb_set1((char)BYTE_SIGN));
    if (f.add == ADD_HALVES || f.add == ADD_HALVES_MINS)
        UNROLL for (int v = 0; v < 8; v++)
            vb_scaled(c->w[v], c->s[v / 4], HIGH_BITS, c->w + v, c->more + v);
    if (f.add == ADD_HALVES_MINS) /* small scales leave nothing there: minus the sums of the halves, times the minima */
        UNROLL for (int v = 0; v < 8; v++)
            c->more[v] = vb_sub(vb_set1(0), vb_of_each(c->m[v / 4]));
}

/* Whether `more` has codes, too. */
INLINE int has_more(const q8_form f)
{
    return f.add == ADD_HALVES || f.add == ADD_HALVES_MINS;
}

/* Sums of one product of a tile of tokens and a chunk. */
typedef int32_t tile_sums[TILE][16];

/* Tiles 0 to 3: sums, 4: activations of TILE tokens; 5: sums, and 6: activations, of the last tokens of a group, if
 * they are fewer; 7: codes. */
INLINE void begin_tiles(int64_t n)
{
    const uint8_t last = (uint8_t)(n % TILE);
    tile_shapes s = {.palette = 1, .bytes = {64, 64, 64, 64, OX_CHUNK}, .rows = {TILE, TILE, TILE, TILE, TILE}};
    s.rows[7] = 8, s.bytes[7] = 64;
    if (last) {
        s.rows[5] = s.rows[6] = last;
        s.bytes[5] = 64, s.bytes[6] = OX_CHUNK;
    }
    tiles_begin(&s);
}

#define TILE_CHUNK(sum, a, codes)      \
    do {                               \
        TILE_LOAD(7, codes, 64);       \
        TILE_ZERO(sum);                \
        TILE_DOT_BYTES(sum, a, 7);     \
    } while (0)

/* What the sums of chunk j are to the outputs of tokens t to t + R - 1. */
INLINE void add_sums(const q8_form f, const chunk *c, const q8_tile *x, int64_t i, int t, const int R, tile_sums *sums,
                     vf *sum)
{
    UNROLL for (int r = 0; r < R; r++) {
        vf d = f.add == ADD_MINS ? LOAD_F32(x->d + (t + r) * STEP + i % STEP) : LOAD_F32(word_of(x, t + r, 0, i));
        vi s = vi_load((const uint32_t *)sums[0][t + r]);
        if (f.add == ADD_HALVES)
            s = vi_add(s, vi_shl(vi_load((const uint32_t *)sums[1][t + r]), HIGH_BITS));
        sum[r] = vf_fma(vf_from_int(s), vf_mul(c->scale, d), sum[r]);
        if (f.add == ADD_MINS)
            sum[r] = vf_fnma(c->second, LOAD_F32(x->ds + (t + r) * STEP + i % STEP), sum[r]);
        if (f.add == ADD_HALVES_MINS)
            sum[r] = vf_fma(vf_from_int(vi_load((const uint32_t *)sums[1][t + r])), vf_mul(c->second, d), sum[r]);
    }
}

/* n chunks for the last tokens of a group, fewer than TILE. */
INLINE void add_last(const q8_form f, const chunk *c, int n, const q8_tile *x, int64_t i, int T, vf *acc)
{
    _Alignas(64) tile_sums sums[2];
    for (int j = 0; j < n; j++, c++) {
        TILE_LOAD(6, x->codes + j * OX_CHUNK, x->stride);
        TILE_CHUNK(5, 6, c->w);
        TILE_STORE(5, sums[0], 64);
        if (has_more(f)) {
            TILE_CHUNK(5, 6, c->more);
            TILE_STORE(5, sums[1], 64);
        }
        int t = 0;
        for (; t + 4 <= T; t += 4)
            add_sums(f, c, x, i + j, t, 4, sums, acc + t);
        for (; t < T; t++)
            add_sums(f, c, x, i + j, t, 1, sums, acc + t);
    }
}

#define START(sum0, sum1, j)                                \
    TILE_LOAD(4, x->codes + (j) * OX_CHUNK, x->stride);     \
    TILE_CHUNK(sum0, 4, c[j].w);                            \
    if (has_more(f))                                        \
        TILE_CHUNK(sum1, 4, c[j].more);
#define STORE(sum0, sum1, sums)       \
    TILE_STORE(sum0, sums[0], 64);    \
    if (has_more(f))                  \
        TILE_STORE(sum1, sums[1], 64);

/* n chunks for TILE tokens, whose outputs stay in registers. The products of the next two are under way meanwhile. */
INLINE void add_tile(const q8_form f, const chunk *c, int n, const q8_tile *x, int64_t i, vf *acc)
{
    _Alignas(64) tile_sums even[2], odd[2];
    vf sum[TILE];
    UNROLL for (int t = 0; t < TILE; t++)
        sum[t] = acc[t];
    START(0, 1, 0)
    if (n > 1) {
        START(2, 3, 1)
    }
    for (int j = 0; j < n; j += 2) {
        STORE(0, 1, even)
        if (j + 2 < n) {
            START(0, 1, j + 2)
        }
        add_sums(f, c + j, x, i + j, 0, TILE, even, sum);
        if (j + 1 == n)
            break;
        STORE(2, 3, odd)
        if (j + 3 < n) {
            START(2, 3, j + 3)
        }
        add_sums(f, c + j + 1, x, i + j + 1, 0, TILE, odd, sum);
    }
    UNROLL for (int t = 0; t < TILE; t++)
        acc[t] = sum[t];
}
#undef START
#undef STORE

/* n chunks for a group whose sums are in memory. */
INLINE void add_tiles(const q8_form f, const chunk *c, int n, const q8_tile *x, int64_t i, int64_t n_tokens, vf *acc)
{
    for (int64_t t = 0; t < n_tokens; t += TILE, x++, acc += TILE)
        if (n_tokens - t < TILE)
            add_last(f, c, n, x, i, (int)(n_tokens - t), acc);
        else
            add_tile(f, c, n, x, i, acc);
}

/* One function for each meaning of scales, of which bits and shift don't matter any more. */
#define ADD_TILES(name, form)                                                                                         \
    static __attribute__((noinline, unused)) void add_##name##_tiles(const chunk *c, int64_t n, const q8_tile *x,     \
                                                                     int64_t i, int64_t n_tokens, vf *acc)            \
    {                                                                                                                 \
        add_tiles(form, c, (int)n, x, i, n_tokens, acc);                                                              \
    }
ADD_TILES(plain, OFFSET(0, 0))
ADD_TILES(mins, MINS(0))
ADD_TILES(halves, HALVES(0, 0))
ADD_TILES(halves_mins, HALVES_MINS(0))

INLINE add_group_fn *adder_of(const q8_form f)
{
    return f.add == ADD_MINS ? add_mins_tiles
           : f.add == ADD_HALVES ? add_halves_tiles
           : f.add == ADD_HALVES_MINS ? add_halves_mins_tiles : add_plain_tiles;
}

/* Codes of a group's tokens for n chunks from i on, where those of a tile lie at equal distances, or copied; and copies
 * of the two words that each chunk with minima takes: read from where they are, those took 1.15 times as long, and one
 * word 0.94 times. */
enum { COPY_STRIDE = STEP * OX_CHUNK + 64 }; /* off a power of two: rows fall into different sets of the cache */
typedef struct { float d[GROUP * STEP], ds[GROUP * STEP]; uint8_t codes[GROUP * COPY_STRIDE]; } tile_copies;

/* `n` words or chunks; nearly always STEP, which is a few moves then, and no call. */
INLINE void copy_steps(void *to, const void *from, int64_t n, const size_t each)
{
    if (n == STEP)
        memcpy(to, from, STEP * each);
    else
        memcpy(to, from, (size_t)n * each);
}

INLINE void tile_tokens(const ox_gemm_args *a, const q8_form f, q8_tile *x, int64_t n_tokens, int64_t i, int64_t n,
                        tile_copies *copy)
{
    for (int64_t t = 0; t < n_tokens; t += TILE, x++) {
        const int T = n_tokens - t < TILE ? (int)(n_tokens - t) : TILE;
        x->codes = a->x_rows ? copy->codes + t * COPY_STRIDE : x->x[0] + i * OX_CHUNK;
        x->stride = a->x_rows ? COPY_STRIDE : a->x_bytes;
        x->d = copy->d + t * STEP;
        x->ds = copy->ds + t * STEP;
        for (int r = 0; a->x_rows && r < T; r++)
            copy_steps(copy->codes + (t + r) * COPY_STRIDE, x->x[r] + i * OX_CHUNK, n, OX_CHUNK);
        for (int r = 0; f.add == ADD_MINS && r < T; r++) {
            copy_steps(copy->d + (t + r) * STEP, word_of(x, r, 0, i), n, 4);
            copy_steps(copy->ds + (t + r) * STEP, word_of(x, r, 1, i), n, 4);
        }
    }
}
