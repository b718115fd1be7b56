/* Integer matrix products of the formats whose codes are points of a grid (IQ1, IQ2, IQ3). Included after q8_words.h.
 *
 * Looking points up costs several times what multiplying a tile of tokens does. So a block of 256 columns is expanded
 * once, to bytes that stay in the first-level cache, for up to GROUP tokens; their sums wait in memory meanwhile. The
 * order of additions is that of every other format: one accumulator per output, chunks in ascending order. */
#define GROUP 64

/* 256 columns: unsigned codes, and per chunk a float scale, or per half of a chunk an integer one beside scale[0]. */
typedef struct { vb w[8][8]; vf scale[8]; vi half_scale[8][2]; } expanded;
typedef void expand_fn(const void *panel, int64_t i, int half, expanded *e);
/* What is common to the codes of a format: code - (1 << shift) is signed; are there integer scales of halves? */
typedef struct { int shift, halves; } code_form;

INLINE void add_expanded(const expanded *e, code_form f, const q8_tile *x, int64_t i, const int T, vf *acc)
{
    vf sum[TILE];
    UNROLL for (int t = 0; t < T; t++)
        sum[t] = acc[t];
    for (int c = 0; c < 8; c++) {
        if (f.halves)
            add_halves(e->w[c], e->scale[0], e->half_scale[c][0], e->half_scale[c][1], f.shift, x, i + c, T, sum);
        else
            add_offset(e->w[c], e->scale[c], f.shift, x, i + c, T, sum);
    }
    UNROLL for (int t = 0; t < T; t++)
        acc[t] = sum[t];
}

INLINE void add_expanded_n(const expanded *e, code_form f, const q8_tile *x, int64_t i, int64_t n, vf *acc)
{
    switch (n) {
    case 8: add_expanded(e, f, x, i, 8, acc); break;
    case 7: add_expanded(e, f, x, i, 7, acc); break;
    case 6: add_expanded(e, f, x, i, 6, acc); break;
    case 5: add_expanded(e, f, x, i, 5, acc); break;
    case 4: add_expanded(e, f, x, i, 4, acc); break;
    case 3: add_expanded(e, f, x, i, 3, acc); break;
    case 2: add_expanded(e, f, x, i, 2, acc); break;
    case 1: add_expanded(e, f, x, i, 1, acc); break;
    }
}

/* One body for each form, not for each format: the shift is a constant in the calls. */
#define ADD_GROUP(name, shift, halves)                                                                       \
    static __attribute__((noinline)) void name(const expanded *e, const q8_tile *x, int64_t i, int64_t n, vf *acc) \
    {                                                                                                        \
        for (int64_t t = 0; t < n; t += TILE)                                                                \
            add_expanded_n(e, (code_form){shift, halves}, x + t / TILE, i, n - t < TILE ? n - t : TILE, acc + t); \
    }
ADD_GROUP(add_group_4, 4, 0)
ADD_GROUP(add_group_6, 6, 0)
ADD_GROUP(add_group_halves_4, 4, 1)
ADD_GROUP(add_group_halves_6, 6, 1)
typedef void add_group_fn(const expanded *e, const q8_tile *x, int64_t i, int64_t n, vf *acc);

INLINE void group_q8(const ox_gemm_args *a, int64_t t0, int64_t n, expand_fn *expand, add_group_fn *add_group)
{
    q8_tile x[GROUP / TILE];
    for (int64_t t = 0; t < n; t++) {
        x[t / TILE].k = a->k;
        x[t / TILE].nb = a->k / OX_CHUNK;
        x[t / TILE].x[t % TILE] = x_of(a, t0 + t);
    }
    const uint8_t *panel = a->w;
    for (int64_t row = 0; row < a->n_rows; row += 16, panel += a->panel_bytes)
        for (int half = 0; half < NV; half++) {
            vf acc[GROUP];
            for (int64_t t = 0; t < n; t++)
                acc[t] = vf_zero();
            for (int64_t i = 0; i < a->k / 256; i++) {
                expanded e;
                expand(panel, i, half, &e);
                add_group(&e, x, 8 * i, n, acc);
            }
            for (int64_t t = 0; t < n; t++)
                store_rows(y_of(a, t0 + t, row + half * VL), acc[t], a->n_rows - row - half * VL, a->accumulate);
        }
}

/* Field of `bits` bits of each word. */
INLINE vi bits_of(vi words, int from, int bits) { return vi_and(vi_shr(words, from), vi_set1((1 << bits) - 1)); }
INLINE vi twice_plus_1(vi x) { return vi_add(vi_shl(x, 1), vi_set1(1)); }

/* Eight signs from seven: the last makes their number even. */
INLINE vi even_signs(vi seven)
{
    vi p = vi_xor(seven, vi_shr(seven, 4));
    p = vi_xor(p, vi_shr(p, 2));
    p = vi_xor(p, vi_shr(p, 1));
    return vi_or(seven, vi_shl(vi_and(p, vi_set1(1)), 7));
}

/* 64 + value to 64 - value in the bytes whose bit of `four` is set. */
INLINE vb apply_signs(vb code, vi four)
{
    vi minus = spread_bits(four);
    return vb_add(vb_xor(code, vb_from_words(vi_sub(vi_shl(minus, 7), minus))), vb_from_words(minus));
}

/* Two vectors from points of a grid of levels, and signs, eight a word. */
INLINE void put_iq2(vb *w, const uint32_t *grid, vi index, vi signs)
{
    vb levels = vb_add(vb_table(ox_codes_iq2), vb_set1(64)), q = vb_from_words(vi_gather(grid, index));
    w[0] = apply_signs(vb_lookup(levels, vb_and(q, vb_set1(15))), bits_of(signs, 0, 4));
    w[1] = apply_signs(vb_lookup(levels, vb_and(vb_shr(q, 4), vb_set1(15))), bits_of(signs, 4, 4));
}

INLINE void expand_IQ2_XXS(const void *panel, int64_t i, int half, expanded *e)
{
    const ox_iq2_xxsx16 *b = (const ox_iq2_xxsx16 *)panel + i;
    vf d = vf_mul(HEAD(b, 0), vf_set1(0.125f));
    for (int c = 0; c < 8; c++) {
        vi index = WORD(b, 2 * c), rest = WORD(b, 2 * c + 1);
        UNROLL for (int g = 0; g < 4; g++)
            put_iq2(e->w[c] + 2 * g, ox_grid_iq2_xxs, bits_of(index, 8 * g, 8), even_signs(bits_of(rest, 7 * g, 7)));
        e->scale[c] = vf_mul(d, vf_from_int(twice_plus_1(vi_shr(rest, 28))));
    }
}

INLINE void expand_IQ2_XS(const void *panel, int64_t i, int half, expanded *e)
{
    const ox_iq2_xsx16 *b = (const ox_iq2_xsx16 *)panel + i;
    e->scale[0] = vf_mul(HEAD(b, 0), vf_set1(0.125f));
    for (int c = 0; c < 8; c++) {
        UNROLL for (int g = 0; g < 4; g++) {
            vi q = WORD(b, 2 * c + g / 2);
            put_iq2(e->w[c] + 2 * g, ox_grid_iq2_xs, bits_of(q, g % 2 * 16, 9), even_signs(bits_of(q, g % 2 * 16 + 9, 7)));
        }
        UNROLL for (int h = 0; h < 2; h++)
            e->half_scale[c][h] = twice_plus_1(bits_of(WORD(b, 16 + c / 4), c % 4 * 8 + 4 * h, 4));
    }
}

INLINE void expand_IQ2_S(const void *panel, int64_t i, int half, expanded *e)
{
    const ox_iq2_sx16 *b = (const ox_iq2_sx16 *)panel + i;
    e->scale[0] = vf_mul(HEAD(b, 0), vf_set1(0.125f));
    for (int c = 0; c < 8; c++) {
        vi low = WORD(b, c), signs = WORD(b, 8 + c), high = WORD(b, 16 + c / 4);
        UNROLL for (int g = 0; g < 4; g++) {
            vi index = vi_or(bits_of(low, 8 * g, 8), vi_shl(bits_of(high, c % 4 * 8 + 2 * g, 2), 8));
            put_iq2(e->w[c] + 2 * g, ox_grid_iq2_s, index, bits_of(signs, 8 * g, 8));
        }
        UNROLL for (int h = 0; h < 2; h++)
            e->half_scale[c][h] = twice_plus_1(bits_of(WORD(b, 18 + c / 4), c % 4 * 8 + 4 * h, 4));
    }
}

INLINE void expand_IQ3_XXS(const void *panel, int64_t i, int half, expanded *e)
{
    const ox_iq3_xxsx16 *b = (const ox_iq3_xxsx16 *)panel + i;
    vf d = vf_mul(HEAD(b, 0), vf_set1(0.25f));
    for (int c = 0; c < 8; c++) {
        vi rest = WORD(b, 16 + c);
        UNROLL for (int v = 0; v < 8; v++) {
            vb code = vb_from_words(vi_gather(ox_grid_iq3_xxs, bits_of(WORD(b, 2 * c + v / 4), v % 4 * 8, 8)));
            e->w[c][v] = apply_signs(code, bits_of(even_signs(bits_of(rest, v / 2 * 7, 7)), v % 2 * 4, 4));
        }
        e->scale[c] = vf_mul(d, vf_from_int(twice_plus_1(vi_shr(rest, 28))));
    }
}

INLINE void expand_IQ3_S(const void *panel, int64_t i, int half, expanded *e)
{
    const ox_iq3_sx16 *b = (const ox_iq3_sx16 *)panel + i;
    vf d = HEAD(b, 0);
    for (int c = 0; c < 8; c++) {
        vi high = WORD(b, 16 + c / 4), signs = WORD(b, 18 + c);
        UNROLL for (int v = 0; v < 8; v++) {
            vi index = vi_or(bits_of(WORD(b, 2 * c + v / 4), v % 4 * 8, 8), vi_shl(bits_of(high, c % 4 * 8 + v, 1), 8));
            e->w[c][v] = apply_signs(vb_from_words(vi_gather(ox_grid_iq3_s, index)), bits_of(signs, 4 * v, 4));
        }
        e->scale[c] = vf_mul(d, vf_from_int(twice_plus_1(bits_of(WORD(b, 26), 4 * c, 4))));
    }
}

/* Two vectors of (level - 1) * 8 + 1, or - 1 where `minus` is one, with 16 added. */
INLINE void put_iq1(vb *w, vi index, vi minus)
{
    vi q = vi_gather(ox_grid_iq1_s, index), low = vi_set1(0x0f0f0f0f);
    vi base = vi_sub(vi_set1(0x09090909), vi_mul(minus, vi_set1(0x02020202)));
    w[0] = vb_from_words(vi_add(vi_shl(vi_and(q, low), 3), base));
    w[1] = vb_from_words(vi_add(vi_shl(vi_and(vi_shr(q, 4), low), 3), base));
}

INLINE void expand_IQ1_S(const void *panel, int64_t i, int half, expanded *e)
{
    const ox_iq1_sx16 *b = (const ox_iq1_sx16 *)panel + i;
    vf d = vf_mul(HEAD(b, 0), vf_set1(0.125f));
    for (int c = 0; c < 8; c++) {
        vi low = WORD(b, c), high = bits_of(WORD(b, 8 + c / 2), c % 2 * 16, 16);
        UNROLL for (int g = 0; g < 4; g++)
            put_iq1(e->w[c] + 2 * g, vi_or(bits_of(low, 8 * g, 8), vi_shl(bits_of(high, 3 * g, 3), 8)), vi_shr(high, 15));
        e->scale[c] = vf_mul(d, vf_from_int(twice_plus_1(bits_of(high, 12, 3))));
    }
}

INLINE void expand_IQ1_M(const void *panel, int64_t i, int half, expanded *e)
{
    const ox_iq1_mx16 *b = (const ox_iq1_mx16 *)panel + i;
    vi s0 = WORD(b, 12), s1 = WORD(b, 13); /* the block's scale: the top four bits of each half of these words */
    vi d = vi_or(vi_or(bits_of(s0, 12, 4), vi_shl(vi_shr(s0, 28), 4)), vi_or(vi_shl(bits_of(s1, 12, 4), 8), vi_shl(vi_shr(s1, 28), 12)));
    e->scale[0] = vf_mul(vf_from_half_bits(d), vf_set1(0.125f));
    for (int c = 0; c < 8; c++) {
        vi low = WORD(b, c), high = vi_shr(WORD(b, 8 + c / 2), c % 2 * 16);
        UNROLL for (int g = 0; g < 4; g++)
            put_iq1(e->w[c] + 2 * g, vi_or(bits_of(low, 8 * g, 8), vi_shl(bits_of(high, 4 * g, 3), 8)), bits_of(high, 4 * g + 3, 1));
        UNROLL for (int h = 0; h < 2; h++)
            e->half_scale[c][h] = twice_plus_1(bits_of(c < 4 ? s0 : s1, c / 2 % 2 * 16 + c % 2 * 6 + 3 * h, 3));
    }
}

#define GEMM_GRID(name, add_group)                                                              \
    static void gemm_##name(const ox_gemm_args *a)                                              \
    {                                                                                           \
        for (int64_t t = 0; t < a->n_tokens; t += GROUP)                                        \
            group_q8(a, t, a->n_tokens - t < GROUP ? a->n_tokens - t : GROUP, expand_##name, add_group); \
    }

GEMM_GRID(IQ2_XXS, add_group_6)
GEMM_GRID(IQ2_XS, add_group_halves_6)
GEMM_GRID(IQ2_S, add_group_halves_6)
GEMM_GRID(IQ3_XXS, add_group_6)
GEMM_GRID(IQ3_S, add_group_6)
GEMM_GRID(IQ1_S, add_group_4)
GEMM_GRID(IQ1_M, add_group_halves_4)
