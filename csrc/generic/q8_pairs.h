/* Groups of tokens where the CPU multiplies matrices of 2 x 8 bytes: two rows of a panel with two tokens. Codes of a
 * step are brought into pairs once for all tokens of a group, activations once for all parts of a panel. Offsets are
 * taken off the codes meanwhile. Included by q8.h. */

/* Codes of STEP chunks of a group's tokens: [tile][chunk][4: eight columns][TILE / 2][2 tokens][8]. Of an odd number of
 * tokens the last one is its own partner. */
#define PAIR_BYTES (STEP * OX_CHUNK * TILE)

INLINE void pair_tokens(q8_tile *x, int64_t n_tokens, int64_t i, int64_t steps)
{
    for (int64_t t = 0; t < n_tokens; t += 2) {
        const q8_tile *tile = x + t / TILE;
        const int64_t odd = t + 1 < n_tokens;
        const uint8_t *a = tile->x[t % TILE] + i * OX_CHUNK, *b = tile->x[t % TILE + odd] + i * OX_CHUNK;
        uint8_t *to = tile->pairs + t % TILE * 8;
        for (int64_t c = 0; c < steps * OX_CHUNK; c += 16, to += 16 * TILE)
            vb_pair(vb_load(a + c), vb_load(b + c), to, to + 8 * TILE);
    }
}

/* Vectors 2p and 2p + 1, less `offset`: eight columns of rows 0 and 1, and of rows 2 and 3. */
INLINE void pair_rows(vb *w, int offset)
{
    UNROLL for (int v = 0; v < 8; v += 2)
        vb_pair_words(vb_sub(w[v], vb_set1((char)offset)), vb_sub(w[v + 1], vb_set1((char)offset)), w + v);
}

INLINE q8_tile paired_tile(const q8_tile *x)
{
    q8_tile own = *x;
    own.paired = 1;
    return own;
}

/* Sums over vectors from..to-1 for T tokens. */
INLINE void dot_pairs(const chunk *c, int from, int to, const q8_tile *x, int64_t i, const int T, vi *s)
{
    const uint8_t *pairs = x->pairs + i % STEP * (OX_CHUNK * TILE);
    vi sum[TILE];
    UNROLL for (int t = 0; t < T; t++)
        sum[t] = sum[t | 1] = vi_zero();
    UNROLL for (int v = from; v < to; v += 2)
        UNROLL for (int t = 0; t < T; t += 2) {
            vb two = vb_load(pairs + v * 4 * TILE + 8 * t);
            sum[t] = vi_dot_pairs(sum[t], c->w[v], two);
            sum[t + 1] = vi_dot_pairs(sum[t + 1], c->w[v + 1], two);
        }
    UNROLL for (int t = 0; t < T; t++)
        s[t] = vi_add(s[t], vi_of_pairs(sum[t & ~1], sum[t | 1], t & 1));
}
