/* The formats whose codes are points of a grid (IQ1, IQ2, IQ3). Included after q8_words.h.
 *
 * Looking points up costs several times what multiplying a tile of tokens does: these formats always unpack to memory,
 * with one body for any number of tokens. */
/* Field of `bits` bits of each word. */
INLINE vi bits_of(vi words, int from, int bits) { return vi_and(vi_shr(words, from), vi_set1((1 << bits) - 1)); }
INLINE vi twice_plus_1(vi x) { return vi_add(vi_shl(x, 1), vi_set1(1)); }

/* A byte or two of each word, for all of its bytes; the bits of a byte that belong to values 0..3 and 4..7. */
static const int8_t byte_of_word[4][16] = {
    {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12}, {1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13},
    {2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14}, {3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15}};
static const int8_t pair_of_word[2][16] = {{0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13},
                                           {2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15}};
static const uint32_t sign_bits[2] = {0x08040201, 0x80402010};

/* Codes of four levels of a point: the bytes that hold them, the bits of each, what these stand for. */
INLINE vb codes_of(vb points, const int8_t *bytes, uint32_t bits, vb codes)
{
    vb q = vb_and(vb_lookup(points, vb_table(bytes)), vb_from_words(vi_set1((int32_t)bits)));
    return vb_lookup(codes, vb_and(vb_or(q, vb_shr(q, 4)), vb_set1(15)));
}

/* offset + value to offset - value where vector v's bit of the chunk's 32 signs is set. */
INLINE vb apply_signs(vb code, int offset, vb signs, int v)
{
    vb test = vb_lookup(signs, vb_table(byte_of_word[v / 2])), bits = vb_from_words(vi_set1((int32_t)sign_bits[v % 2]));
    return vb_choose(test, bits, vb_sub(vb_set1((char)(2 * offset)), code), code);
}

/* Fields of seven bits that lie apart are a byte each: their eighth bit makes the number of signs even. */
INLINE vb even_signs(vi seven)
{
    static const int8_t parity[16] = {0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0};
    vb s = vb_from_words(seven), table = vb_table(parity), low = vb_set1(15);
    return vb_or(s, vb_xor(vb_lookup(table, vb_and(s, low)), vb_lookup(table, vb_and(vb_shr(s, 4), low))));
}

/* Four fields of seven bits, one after the other, to the four bytes. */
INLINE vi sevens(vi x)
{
    vi low = vi_or(bits_of(x, 0, 7), vi_and(vi_shl(x, 1), vi_set1(0x7f00)));
    return vi_or(low, vi_or(vi_and(vi_shl(x, 2), vi_set1(0x7f0000)), vi_and(vi_shl(x, 3), vi_set1(0x7f000000))));
}

/* Indices 0 and 2, or 1 and 3 (`odd`), of four that are the bytes of `low`, with high bits for each of the two: `field`
 * bits of `high`, from `from` and from `from` + `apart` up. */
INLINE vb two_indices(vi low, int odd, vi high, int from, int apart, int field)
{
    vi i = vi_and(vi_shr(low, 8 * odd), vi_set1(0x00ff00ff));
    if (field) {
        i = vi_or(i, vi_shl(bits_of(high, from, field), 8));
        i = vi_or(i, vi_shl(bits_of(high, from + apart, field), 24));
    }
    return vb_from_words(i);
}

/* Vectors of groups g and g2 of eight values, whose points are the two halves of each word. */
INLINE void put_iq2(vb *w, int g, int g2, vb points, vb signs)
{
    vb codes = vb_add(vb_table(ox_codes_iq2), vb_set1(64));
    UNROLL for (int j = 0; j < 4; j++) {
        int v = 2 * (j < 2 ? g : g2) + j % 2;
        w[v] = apply_signs(codes_of(points, byte_of_word[j], 0xc0300c03, codes), 64, signs, v);
    }
}

INLINE void unpack_IQ2_XXS(const void *block, int i, int half, chunk *c)
{
    const ox_iq2_xxsx16 *b = block;
    vf d = vf_mul(HEAD(b, 0), vf_set1(0.125f));
    vi index = WORD(b, 2 * i), rest = WORD(b, 2 * i + 1);
    vb signs = even_signs(sevens(rest));
    UNROLL for (int odd = 0; odd < 2; odd++) {
        vb points = vb_lookup_16(ox_grid_iq2_xxs, 8, two_indices(index, odd, rest, 0, 0, 0));
        put_iq2(c->w, odd, odd + 2, points, signs);
    }
    c->scale = vf_mul(d, vf_from_int(twice_plus_1(vi_shr(rest, 28))));
}

INLINE void unpack_IQ2_XS(const void *block, int i, int half, chunk *c)
{
    const ox_iq2_xsx16 *b = block;
    c->scale = vf_mul(HEAD(b, 0), vf_set1(0.125f));
    vi q[2] = {WORD(b, 2 * i), WORD(b, 2 * i + 1)};
    vi first = vi_or(bits_of(q[0], 9, 7), vi_and(vi_shr(q[0], 17), vi_set1(0x7f00)));
    vi second = vi_or(vi_and(vi_shl(q[1], 7), vi_set1(0x7f0000)), vi_and(vi_shr(q[1], 1), vi_set1(0x7f000000)));
    vb signs = even_signs(vi_or(first, second));
    UNROLL for (int j = 0; j < 2; j++) {
        vb points = vb_lookup_16(ox_grid_iq2_xs, 9, vb_from_words(vi_and(q[j], vi_set1(0x01ff01ff))));
        put_iq2(c->w, 2 * j, 2 * j + 1, points, signs);
        c->s[j] = twice_plus_1(bits_of(WORD(b, 16 + i / 4), i % 4 * 8 + 4 * j, 4));
    }
}

INLINE void unpack_IQ2_S(const void *block, int i, int half, chunk *c)
{
    const ox_iq2_sx16 *b = block;
    c->scale = vf_mul(HEAD(b, 0), vf_set1(0.125f));
    vi high = vi_shr(WORD(b, 16 + i / 4), i % 4 * 8);
    UNROLL for (int odd = 0; odd < 2; odd++) {
        vb points = vb_lookup_16(ox_grid_iq2_s, 10, two_indices(WORD(b, i), odd, high, 2 * odd, 4, 2));
        put_iq2(c->w, odd, odd + 2, points, BYTES(b, 8 + i));
        c->s[odd] = twice_plus_1(bits_of(WORD(b, 18 + i / 4), i % 4 * 8 + 4 * odd, 4));
    }
}

/* Vectors v and v + 2, whose points are the two halves of each word. */
INLINE void put_iq3(vb *w, int v, vb points, const int8_t *codes, int offset, vb signs)
{
    vb table = vb_add(vb_table(codes), vb_set1((char)offset));
    UNROLL for (int j = 0; j < 2; j++)
        w[v + 2 * j] = apply_signs(codes_of(points, pair_of_word[j], 0xf00ff00f, table), offset, signs, v + 2 * j);
}

INLINE void unpack_IQ3_XXS(const void *block, int i, int half, chunk *c)
{
    const ox_iq3_xxsx16 *b = block;
    vf d = vf_mul(HEAD(b, 0), vf_set1(0.25f));
    vi rest = WORD(b, 16 + i);
    vb signs = even_signs(sevens(rest));
    UNROLL for (int j = 0; j < 4; j++) {
        vb points = vb_lookup_16(ox_grid_iq3_xxs, 8, two_indices(WORD(b, 2 * i + j / 2), j % 2, rest, 0, 0, 0));
        put_iq3(c->w, j / 2 * 4 + j % 2, points, ox_codes_iq3_xxs, 64, signs);
    }
    c->scale = vf_mul(d, vf_from_int(twice_plus_1(vi_shr(rest, 28))));
}

INLINE void unpack_IQ3_S(const void *block, int i, int half, chunk *c)
{
    const ox_iq3_sx16 *b = block;
    vf d = HEAD(b, 0);
    vi high = vi_shr(WORD(b, 16 + i / 4), i % 4 * 8);
    UNROLL for (int j = 0; j < 4; j++) {
        int v = j / 2 * 4 + j % 2;
        vb points = vb_lookup_16(ox_grid_iq3_s, 9, two_indices(WORD(b, 2 * i + j / 2), j % 2, high, v, 2, 1));
        put_iq3(c->w, v, points, ox_codes_iq3_s, 16, BYTES(b, 18 + i));
    }
    c->scale = vf_mul(d, vf_from_int(twice_plus_1(bits_of(WORD(b, 26), 4 * i, 4))));
}

/* Vectors of groups g and g + 2: levels in eighths, one more, or one less where a group's `minus` is one, and 16
 * added: 8 to the levels and 9 or 7 here, so that no byte borrows from the next. */
INLINE void put_iq1(vb *w, int g, vb points, vi minus0, vi minus2)
{
    vb codes = vb_add(vb_table(ox_codes_iq1), vb_set1(8));
    UNROLL for (int j = 0; j < 4; j++) {
        vi rest = vi_sub(vi_set1(0x09090909), vi_mul(j < 2 ? minus0 : minus2, vi_set1(0x02020202)));
        vb level = codes_of(points, byte_of_word[j], 0xc0300c03, codes);
        w[2 * (g + j / 2 * 2) + j % 2] = vb_add(level, vb_from_words(rest));
    }
}

INLINE void unpack_IQ1_S(const void *block, int i, int half, chunk *c)
{
    const ox_iq1_sx16 *b = block;
    vf d = vf_mul(HEAD(b, 0), vf_set1(0.125f));
    vi high = bits_of(WORD(b, 8 + i / 2), i % 2 * 16, 16), minus = vi_shr(high, 15);
    UNROLL for (int odd = 0; odd < 2; odd++) {
        vb points = vb_lookup_16(ox_grid_iq1_s, 11, two_indices(WORD(b, i), odd, high, 3 * odd, 6, 3));
        put_iq1(c->w, odd, points, minus, minus);
    }
    c->scale = vf_mul(d, vf_from_int(twice_plus_1(bits_of(high, 12, 3))));
}

/* The block's scale: the top four bits of both halves of two words. */
INLINE vf scale_IQ1_M(vi s0, vi s1)
{
    vi low = vi_or(bits_of(s0, 12, 4), vi_shl(vi_shr(s0, 28), 4));
    return vf_from_half_bits(vi_or(low, vi_or(vi_shl(bits_of(s1, 12, 4), 8), vi_shl(vi_shr(s1, 28), 12))));
}

INLINE void unpack_IQ1_M(const void *block, int i, int half, chunk *c)
{
    const ox_iq1_mx16 *b = block;
    c->scale = vf_mul(scale_IQ1_M(WORD(b, 12), WORD(b, 13)), vf_set1(0.125f));
    vi high = vi_shr(WORD(b, 8 + i / 2), i % 2 * 16);
    UNROLL for (int odd = 0; odd < 2; odd++) {
        vb points = vb_lookup_16(ox_grid_iq1_s, 11, two_indices(WORD(b, i), odd, high, 4 * odd, 8, 3));
        put_iq1(c->w, odd, points, bits_of(high, 4 * odd + 3, 1), bits_of(high, 4 * odd + 11, 1));
        c->s[odd] = twice_plus_1(bits_of(WORD(b, 12 + i / 4), i / 2 % 2 * 16 + i % 2 * 6 + 3 * odd, 3));
    }
}
