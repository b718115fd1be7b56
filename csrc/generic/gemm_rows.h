/* Integer products of rows as files store them, for few tokens: 16 rows' words are put side by side into the vectors
 * that a packed panel would have held, and multiplied from registers by the same forms in the same order: equal
 * bits. Through a panel in memory, one row took half as long again. Included after a tier's vocab.h and pack.h;
 * fills the slots. */
#include "q8.h"
#include "q8_words.h"
#include "q8_grid.h"
#include "stored.h"
#include "few_rows.h"

/* One block of the rows of a half (or whole) of a panel, from chunk i on, and requests for as many bytes at `next`. */
typedef void block_fn(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                      vf *acc);

/* Asks for what comes next, a chunk's share at a time, since requests for a whole block would fill the core's miss
 * buffers: of the next panel, and for the first-level cache of the next block of some rows, without which one row of
 * Q6_K took 1.3 times as long. */
INLINE void fetch_share(const uint8_t *s, size_t stride, const uint8_t *next, int64_t block, int share, int shares)
{
    const int64_t n = VL * block / shares;
    if (share == 0)
        fetch_page(next);
    UNROLL for (int64_t at = 0; at < n; at += 64)
        fetch_line(next + share * n + at);
    if (block >= 32) /* smaller ones would ask for each line several times */
        for (int r = 0; r < VL / shares; r++)
            UNROLL for (int64_t at = 0; at < block; at += 64)
                __builtin_prefetch(s + block + (size_t)(share * VL / shares + r) * stride + at, 0, 3);
}

INLINE vi nibble_of(vi words, int high) { return vi_and(high ? vi_shr(words, 4) : words, vb_set1(15)); }
INLINE vi byte_of(vi words, int j) { return vi_and(vi_shr(words, 8 * j), vi_set1(255)); }

INLINE void block_Q4_0(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                       vf *acc)
{
    chunk c;
    fetch_share(s, stride, next, sizeof(ox_q4_0), 0, 1);
    vi w[4];
    four_words(s + 2, stride, w);
    UNROLL for (int v = 0; v < 8; v++)
        c.w[v] = nibble_of(w[v % 4], v / 4);
    c.scale = vf_of_halves(s, stride);
    add_chunk(OFFSET(4, 3), &c, x, i, T, acc);
}

INLINE void block_Q4_1(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                       vf *acc)
{
    chunk c;
    vi head[4], w[4];
    fetch_share(s, stride, next, sizeof(ox_q4_1), 0, 1);
    four_words(s, stride, head);
    four_words(s + 4, stride, w);
    UNROLL for (int v = 0; v < 8; v++)
        c.w[v] = nibble_of(w[v % 4], v / 4);
    c.scale = first_halves(head[0]);
    c.second = vf_sub(vf_zero(), second_halves(head[0]));
    add_chunk(MINS(4), &c, x, i, T, acc);
}

/* Nibbles of four words, and bit l of `bits` as the fifth one of code l. */
INLINE void put_fives(const vi *w, vi bits, vb *codes)
{
    UNROLL for (int v = 0; v < 8; v++) {
        vb low = nibble_of(w[v % 4], v / 4), test = vb_lookup(bits, vb_table(byte_of_word[v / 2]));
        codes[v] = vb_choose(test, vb_from_words(vi_set1((int32_t)sign_bits[v % 2])), vb_or(low, vb_set1(16)), low);
    }
}

INLINE void block_Q5_0(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                       vf *acc)
{
    chunk c;
    vi head[4], w[4];
    fetch_share(s, stride, next, sizeof(ox_q5_0), 0, 1);
    four_words(s, stride, head);
    four_words(s + 6, stride, w);
    put_fives(w, vi_or(vi_shr(head[0], 16), vi_shl(head[1], 16)), c.w);
    c.scale = first_halves(head[0]);
    add_chunk(OFFSET(5, 4), &c, x, i, T, acc);
}

INLINE void block_Q5_1(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                       vf *acc)
{
    chunk c;
    vi head[4], w[4];
    fetch_share(s, stride, next, sizeof(ox_q5_1), 0, 1);
    four_words(s, stride, head);
    four_words(s + 8, stride, w);
    put_fives(w, head[1], c.w);
    c.scale = first_halves(head[0]);
    c.second = vf_sub(vf_zero(), second_halves(head[0]));
    add_chunk(MINS(5), &c, x, i, T, acc);
}

/* What the nibbles of four words stand for. */
INLINE void look_up(const vi *w, vb table, vb *codes)
{
    UNROLL for (int v = 0; v < 8; v++)
        codes[v] = vb_lookup(table, nibble_of(w[v % 4], v / 4));
}

INLINE void block_IQ4_NL(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                         vf *acc)
{
    chunk c;
    vi w[4];
    fetch_share(s, stride, next, sizeof(ox_iq4_nl), 0, 1);
    four_words(s + 2, stride, w);
    look_up(w, vb_xor(vb_table(ox_codes_iq4), vb_set1((char)BYTE_SIGN)), c.w);
    c.scale = vf_of_halves(s, stride);
    add_chunk(SIGNED_BYTES, &c, x, i, T, acc);
}

INLINE void block_IQ4_XS(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                         vf *acc)
{
    const vb table = vb_xor(vb_table(ox_codes_iq4), vb_set1((char)BYTE_SIGN));
    vi head[4];
    four_words(s, stride, head);
    const vf d = first_halves(head[0]);
    for (int j = 0; j < 8; j += 2) {
        vi w[8];
        fetch_share(s, stride, next, sizeof(ox_iq4_xs), j / 2, 4);
        eight_words(s + 8 + 16 * j, stride, w);
        UNROLL for (int odd = 0; odd < 2; odd++) {
            chunk c;
            look_up(w + 4 * odd, table, c.w);
            c.scale = scale_IQ4_XS(d, head[1], vi_shr(head[0], 16), j + odd);
            add_chunk(SIGNED_BYTES, &c, x, i + j + odd, T, acc);
        }
    }
}

INLINE void block_MXFP4(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                        vf *acc)
{
    chunk c;
    vi w[4];
    fetch_share(s, stride, next, sizeof(ox_mxfp4), 0, 1);
    four_words(s + 1, stride, w);
    look_up(w, vb_add(vb_table(ox_codes_fp4), vb_set1(16)), c.w);
    c.scale = power_of_two(vi_and(vi_of_halves(s, stride), vi_set1(255)));
    add_chunk(OFFSET(5, 4), &c, x, i, T, acc);
}

INLINE void block_Q8_0(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                       vf *acc)
{
    chunk c;
    fetch_share(s, stride, next, sizeof(ox_q8_0), 0, 1);
    four_words(s + 2, stride, c.w); /* with eight_words(), 1.2 times as long on Zen 5: other formats gain by it */
    four_words(s + 18, stride, c.w + 4);
    UNROLL for (int v = 0; v < 8; v++)
        c.w[v] = vb_xor(c.w[v], vb_set1((char)BYTE_SIGN));
    c.scale = vf_of_halves(s, stride);
    add_chunk(SIGNED_BYTES, &c, x, i, T, acc);
}

/* What stands in front of the codes of Q4_K and Q5_K. */
typedef struct { vf d, dmin; vi scales[2], mins[2]; } k_head;

INLINE k_head read_head(const uint8_t *s, size_t stride)
{
    vi w[4];
    four_words(s, stride, w);
    k_head h = {.d = first_halves(w[0]), .dmin = second_halves(w[0])};
    six_bit_scales(w, h.scales, h.mins);
    return h;
}

INLINE void set_scales(chunk *c, const k_head *h, int j)
{
    c->scale = vf_mul(h->d, vf_from_int(byte_of(h->scales[j / 4], j % 4)));
    c->second = vf_mul(h->dmin, vf_from_int(byte_of(h->mins[j / 4], j % 4)));
}

INLINE void block_Q4_K(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                       vf *acc)
{
    const k_head h = read_head(s, stride);
    for (int j = 0; j < 8; j += 2) {
        vi w[8];
        fetch_share(s, stride, next, sizeof(ox_q4_k), j / 2, 4);
        eight_words(s + 16 + 16 * j, stride, w);
        UNROLL for (int high = 0; high < 2; high++) {
            chunk c;
            UNROLL for (int v = 0; v < 8; v++)
                c.w[v] = nibble_of(w[v], high);
            set_scales(&c, &h, j + high);
            add_chunk(MINS(4), &c, x, i + j + high, T, acc);
        }
    }
}

INLINE void block_Q5_K(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                       vf *acc)
{
    const k_head h = read_head(s, stride);
    vi fifth[8];
    eight_words(s + 16, stride, fifth);
    for (int j = 0; j < 8; j += 2) {
        vi w[8];
        fetch_share(s, stride, next, sizeof(ox_q5_k), j / 2, 4);
        eight_words(s + 48 + 16 * j, stride, w);
        UNROLL for (int high = 0; high < 2; high++) {
            chunk c;
            UNROLL for (int v = 0; v < 8; v++) {
                c.w[v] = vi_or(nibble_of(w[v], high), vi_and(vi_shl(fifth[v], 4), vb_set1(16)));
                fifth[v] = vi_shr(fifth[v], 1);
            }
            set_scales(&c, &h, j + high);
            add_chunk(MINS(5), &c, x, i + j + high, T, acc);
        }
    }
}

INLINE void block_Q6_K(const uint8_t *s, size_t stride, const uint8_t *next, const q8_tile *x, int64_t i, const int T,
                       vf *acc)
{
    const vf d = vf_of_halves(s + 208, stride);
    vi scales[4], sign = vi_set1(128);
    four_words(s + 192, stride, scales);
    for (int part = 0; part < 2; part++) {
        vi low[2][8], top[8];
        eight_words(s + 64 * part, stride, low[0]);
        eight_words(s + 64 * part + 32, stride, low[1]);
        eight_words(s + 128 + 32 * part, stride, top);
        UNROLL for (int q = 0; q < 4; q++) {
            const int j = 4 * part + q;
            chunk c = {.scale = d};
            fetch_share(s, stride, next, sizeof(ox_q6_k), j, 8);
            UNROLL for (int v = 0; v < 8; v++)
                c.w[v] = vi_or(nibble_of(low[q % 2][v], q / 2), vi_and(vi_moved(top[v], 4 - 2 * q), vb_set1(0x30)));
            UNROLL for (int h = 0; h < 2; h++)
                c.s[h] = vi_sub(vi_xor(byte_of(scales[j / 2], j % 2 * 2 + h), sign), sign);
            add_chunk(HALVES(6, 5), &c, x, i + j, T, acc);
        }
    }
}

/* One tile of tokens against all panels. one_copy: both halves pass through one copy of the body, which is so long for
 * Q6_K that two take 1.1 times as long; of the other formats two take 0.96 to 1 of the time. */
INLINE void tile_rows(const ox_gemm_args *a, block_fn *add_block, int64_t bytes, int chunks, int one_copy, int64_t t0,
                      const int T)
{
    q8_tile x = {.k = a->k, .nb = a->k / OX_CHUNK};
    UNROLL for (int t = 0; t < T; t++)
        x.x[t] = x_of(a, t0 + t);
    const uint8_t *rows = a->w;
    const size_t stride = a->panel_bytes / 16;
    for (int64_t row = 0; row < a->n_rows; row += 16, rows += a->panel_bytes) {
        vf acc[NV][TILE];
        UNROLL for (int j = 0; j < NV * T; j++)
            acc[j / T][j % T] = vf_zero();
        const uint8_t *s = rows, *next = rows + a->panel_bytes;
        for (int64_t i = 0; i < x.nb; i += chunks, s += bytes)
            if (one_copy)
                for (int half = 0; half < NV; half++, next += VL * bytes)
                    add_block(s + half * VL * stride, stride, next, &x, i, T, acc[half]);
            else
                UNROLL for (int half = 0; half < NV; half++, next += VL * bytes)
                    add_block(s + half * VL * stride, stride, next, &x, i, T, acc[half]);
        store_panel(a, t0, T, row, TILE, acc[0]);
    }
}

#define TILE_ROWS(T, name, block, chunks, one_copy)                             \
    APART void tile_##T##_##name(const ox_gemm_args *a, int64_t t0)             \
    {                                                                           \
        tile_rows(a, block_##name, sizeof(block), chunks, one_copy, t0, T);     \
    }
#define GEMM_ROWS(name, block, chunks, one_copy)                \
    EACH_ROWS_TILE(TILE_ROWS, name, block, chunks, one_copy)    \
    IN_ROWS_TILES(name)

GEMM_ROWS(Q4_0, ox_q4_0, 1, 0)
GEMM_ROWS(Q4_1, ox_q4_1, 1, 0)
GEMM_ROWS(Q5_0, ox_q5_0, 1, 0)
GEMM_ROWS(Q5_1, ox_q5_1, 1, 0)
GEMM_ROWS(Q8_0, ox_q8_0, 1, 0)
GEMM_ROWS(IQ4_NL, ox_iq4_nl, 1, 0)
GEMM_ROWS(IQ4_XS, ox_iq4_xs, 8, 0)
GEMM_ROWS(MXFP4, ox_mxfp4, 1, 0)
GEMM_ROWS(Q4_K, ox_q4_k, 8, 0)
GEMM_ROWS(Q5_K, ox_q5_k, 8, 0)
GEMM_ROWS(Q6_K, ox_q6_k, 8, 1)

static void fill_gemm_rows(ox_kernels *t)
{
    t->gemm_rows[OX_Q4_0] = gemm_rows_Q4_0;
    t->gemm_rows[OX_Q4_1] = gemm_rows_Q4_1;
    t->gemm_rows[OX_Q5_0] = gemm_rows_Q5_0;
    t->gemm_rows[OX_Q5_1] = gemm_rows_Q5_1;
    t->gemm_rows[OX_Q8_0] = gemm_rows_Q8_0;
    t->gemm_rows[OX_IQ4_NL] = gemm_rows_IQ4_NL;
    t->gemm_rows[OX_IQ4_XS] = gemm_rows_IQ4_XS;
    t->gemm_rows[OX_MXFP4] = gemm_rows_MXFP4;
    t->gemm_rows[OX_Q4_K] = gemm_rows_Q4_K;
    t->gemm_rows[OX_Q5_K] = gemm_rows_Q5_K;
    t->gemm_rows[OX_Q6_K] = gemm_rows_Q6_K;
}
