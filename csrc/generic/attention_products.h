/* The two matrix products of attention, on one tile of 64 keys. Keys lie in panels of 16 tokens, so that scores are
 * lanes and need no horizontal sum; values lie in rows, so that outputs are lanes. All rows share each load. */

typedef struct {
    const ox_attn_args *a;
    int rows, dims, chunks;            /* dims: v_dim padded; chunks: of 32 values of a key */
    const uint8_t *k_panel[4], *v_panel[4]; /* of this tile, in the cache or converted */
    const uint8_t *k_next[4], *v_next[4];   /* of the next tile, in the cache */
    float *q;                          /* blocks of R rows: [k_dim][R]; or codes [chunks][8][R][4] */
    float *q_scale;                    /* for codes: scales [chunks][R], then start values int32 [chunks][R] */
    float *scores;                     /* [rows][64], after the softmax: weights */
    float *correction;                 /* [rows]: what earlier sums are multiplied with */
    float *acc, *max, *sum;            /* of this span: [rows][dims], [rows], [rows]; row = query * group + head */
    float *k_tile, *v_tile, *v_scale;  /* converted keys and values, scales of values [chunks of v][64] */
    int8_t *codes;                     /* one quantised query */
} attn;

/* Accumulators in registers of a block of scores: as many vectors of keys as fit beside the rows. */
#ifndef SCORE_ACC
#define SCORE_ACC (SCORE_ROWS * NV)
#endif
#define SCORE_VECTORS(R) (SCORE_ACC / (R) > 64 / VL ? 64 / VL : SCORE_ACC / (R) < NV ? NV : SCORE_ACC / (R))
#define CODE_ROWS (VL == 16 ? 4 : 1) /* rows of values that are summed as integers: two accumulators for each vector */

/* How rows are divided into blocks, and in what order. */
INLINE int row_block(const attn *s, int row)
{
    int left = s->rows - row;
    return left >= SCORE_ROWS ? SCORE_ROWS : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Asks for 64 bytes of the next tile. The products of the first rows do so with every step, for what they read in this
 * tile: all at once, requests fill a core's miss buffers, and the products wait for them. To the second level, which
 * has more of those. One token after 32768, eight heads, Zen 4: 13 ns instead of 23 for a key of q8_0 and 19 instead of
 * 33 of f16, of which products take 10 and 15. */
INLINE void ask(const uint8_t *p) { __builtin_prefetch(p, 0, 2); }

enum { CONVERTED = -1 }; /* a type of KV: halves in the cache, floats in this tile */
#define CACHED_BYTES(type) ((type) == OX_KV_F32 ? 4 : 2)

INLINE vf kv_load(const uint8_t *p, size_t i, const int type)
{
    return type == OX_KV_F16 ? vf_from_half((const uint16_t *)p + i) : vf_load((const float *)p + i);
}

/* Scores of R rows against N vectors of keys. */
INLINE void score_floats(const attn *s, int row, int key, const int R, const int N, const int type)
{
    const float *q = s->q + row * s->a->k_dim;
    const uint8_t *const *panel = s->k_panel + key / 16, *const *next = s->k_next + key / 16;
    vf acc[8][16];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < N; v++)
            acc[r][v] = vf_zero();
    for (int i = 0; i < s->a->k_dim; i++, q += R) {
        vf k[16];
        if (row == 0)
            UNROLL for (int v = 0; v < N; v += NV)
                ask(next[v / NV] + (size_t)i * 16 * CACHED_BYTES(type));
        UNROLL for (int v = 0; v < N; v++)
            k[v] = kv_load(panel[v / NV], (size_t)i * 16 + (size_t)(v % NV * VL), type);
        UNROLL for (int r = 0; r < R; r++) {
            vf x = vf_set1(q[r]);
            UNROLL for (int v = 0; v < N; v++)
                acc[r][v] = vf_fma(k[v], x, acc[r][v]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < N; v++)
            vf_store(s->scores + (row + r) * OX_ATTN_TILE + key + v * VL, acc[r][v]);
}

#ifdef DOT_IS_7_BIT
INLINE vi key_dot(vi s, vb w, vb x) { return vi_dot_signed(s, w, x); }
#define KEY_SIGN(w) vb_xor(w, vb_set1((char)0x80))
#define KEY_TABLE(t) (t)
#define KEY_OFFSET 0
#else
INLINE vi key_dot(vi s, vb w, vb x) { return vi_dot(s, w, x); }
#define KEY_SIGN(w) (w)
#define KEY_TABLE(t) vb_xor(t, vb_set1((char)0x80))
#define KEY_OFFSET 128
#endif

enum { UNPACKED = -2 }; /* codes of 4 bits in the cache, of 8 bits in this tile */
#define IS_CODED(type) ((type) == UNPACKED || ox_kv_coded(type))
/* Bytes of the codes of 32 values of 16 tokens: in this tile, and in the cache. */
#define CODE_BYTES(type) ((type) == OX_KV_Q4_0 ? 256 : 512)
#define CACHED_CODE_BYTES(type) ((type) == OX_KV_Q8_0 ? 512 : 256)

/* Vector i of the n that codes of 32 values of 16 keys, or of 4 values, make: as they are, or looked up. */
INLINE vb code_vector(const uint8_t *p, int i, const int n, vb table, const int type)
{
    if (type != OX_KV_Q4_0)
        return vb_load(p + i * VB);
    vb both = vb_load(p + i % (n / 2) * VB);
    return vb_lookup(table, vb_and(i < n / 2 ? both : vb_shr(both, 4), vb_set1(15)));
}

/* Scores of R rows against one panel of coded keys: integers within 32 values, floats between. */
INLINE void score_codes(const attn *s, int row, int key, const int R, const int type)
{
    vb table = KEY_TABLE(vb_table(ox_codes_kv));
    const uint8_t *k = s->k_panel[key / 16], *next = s->k_next[key / 16];
    const uint8_t *q = (const uint8_t *)s->q + row * s->chunks * 32;
    const uint16_t *scale = (const uint16_t *)(k + CODE_BYTES(type) * s->chunks);
    const float *d = s->q_scale + 2 * row * s->chunks, *start = d + s->chunks * R;
    vf acc[8][NV];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < NV; v++)
            acc[r][v] = vf_zero();
    for (int c = 0; c < s->chunks; c++, k += CODE_BYTES(type), q += 32 * R, scale += 16, d += R, start += R) {
        if (row == 0) {
            for (int i = 0; i < CACHED_CODE_BYTES(type); i += 64)
                ask(next + CACHED_CODE_BYTES(type) * c + i);
            ask(next + CACHED_CODE_BYTES(type) * s->chunks + 32 * c);
        }
        UNROLL for (int v = 0; v < NV; v++) {
            vi t[8];
            vf ks = vf_from_half(scale + v * VL);
            UNROLL for (int r = 0; r < R; r++)
                t[r] = LOAD_I32((const uint8_t *)start + 4 * r);
            UNROLL for (int quad = 0; quad < 8; quad++) {
                vb w = code_vector(k, quad * NV + v, 8 * NV, table, type);
                w = type == OX_KV_Q4_0 ? w : KEY_SIGN(w);
                UNROLL for (int r = 0; r < R; r++)
                    t[r] = key_dot(t[r], w, vb_set4(q + 4 * (quad * R + r)));
            }
            UNROLL for (int r = 0; r < R; r++)
                acc[r][v] = vf_fma(vf_from_int(t[r]), vf_mul(ks, vf_set1(d[r])), acc[r][v]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < NV; v++)
            vf_store(s->scores + (row + r) * OX_ATTN_TILE + key + v * VL, acc[r][v]);
}

INLINE void score_rows(const attn *s, int row, int n_keys, const int R, const int type)
{
    int key = 0;
    for (; !IS_CODED(type) && key + SCORE_VECTORS(R) * VL <= n_keys; key += SCORE_VECTORS(R) * VL)
        score_floats(s, row, key, R, SCORE_VECTORS(R), type);
    for (; key < n_keys; key += 16)
        if (IS_CODED(type))
            score_codes(s, row, key, R, type);
        else
            score_floats(s, row, key, R, NV, type);
}

INLINE void score_tile(const attn *s, int n_keys, const int type)
{
    for (int row = 0; row < s->rows;)
        switch (row_block(s, row)) {
#if SCORE_ROWS > 4
        case SCORE_ROWS: score_rows(s, row, n_keys, SCORE_ROWS, type); row += SCORE_ROWS; break;
#endif
        case 4: score_rows(s, row, n_keys, 4, type); row += 4; break;
        case 2: score_rows(s, row, n_keys, 2, type); row += 2; break;
        default: score_rows(s, row, n_keys, 1, type); row += 1;
        }
}

/* acc[row..row+R) = correction x acc + weights x values of keys [from, to), D vectors of dimensions. */
INLINE void add_values(const attn *s, int row, int from, int to, int dim, const int R, const int D, const int type)
{
    vf acc[4][8];
    const float *weight = s->scores + row * OX_ATTN_TILE;
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int d = 0; d < D; d++)
            acc[r][d] = vf_mul(vf_load(s->acc + (row + r) * s->dims + dim + d * VL), vf_set1(s->correction[row + r]));
    for (int key = from; key < to;) {
        const uint8_t *panel = s->v_panel[key / 16], *next = s->v_next[key / 16];
        int end = (key / 16 + 1) * 16;
        for (end = end < to ? end : to; key < end; key++) {
            vf v[8];
            if (row == 0)
                for (int d = 0; d < D * VL * CACHED_BYTES(type); d += 64)
                    ask(next + (key % 16 * s->dims + dim) * CACHED_BYTES(type) + d);
            UNROLL for (int d = 0; d < D; d++)
                v[d] = kv_load(panel, (size_t)(key % 16 * s->dims + dim + d * VL), type);
            UNROLL for (int r = 0; r < R; r++) {
                vf p = vf_set1(weight[r * OX_ATTN_TILE + key]);
                UNROLL for (int d = 0; d < D; d++)
                    acc[r][d] = vf_fma(v[d], p, acc[r][d]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int d = 0; d < D; d++)
            vf_store(s->acc + (row + r) * s->dims + dim + d * VL, acc[r][d]);
}

INLINE void float_values(const attn *s, int row, int rows, int from, int to, const int type)
{
    for (int end = row + rows; row < end;) {
        int r = end - row >= VALUE_ROWS ? VALUE_ROWS : 1, dim = 0;
        for (; dim + 4 * VL <= s->dims; dim += 4 * VL)
            if (r == 1)
                add_values(s, row, from, to, dim, 1, 4, type);
            else
                add_values(s, row, from, to, dim, VALUE_ROWS, 4, type);
        for (; dim < s->dims; dim += VL)
            if (r == 1)
                add_values(s, row, from, to, dim, 1, 1, type);
            else
                add_values(s, row, from, to, dim, VALUE_ROWS, 1, type);
        row += r;
    }
}

/* Weights times the scales of one chunk of values, as integers of 14 bits in two bytes of 7: `unit` of what the largest
 * is 16383. That is 64 times finer than the values' own codes. The largest is taken as bits: NaN stands above
 * infinity. */
INLINE float weigh(const attn *s, int row, int chunk, uint8_t *high, uint8_t *low)
{
    const float *p = s->scores + row * OX_ATTN_TILE, *scale = s->v_scale + chunk * OX_ATTN_TILE;
    union { uint32_t u; float f; } max;
    vf x[64 / VL];
    vi largest = vi_zero();
    UNROLL for (int i = 0; i < 64 / VL; i++) {
        x[i] = vf_mul(vf_load(p + i * VL), vf_load(scale + i * VL));
        largest = vi_max_u(largest, vi_magnitude(x[i]));
    }
    max.u = vi_reduce_max_u(largest);
    vf inverse = vf_set1(max.u < 0x06000000 || max.u >= 0x7f800000 ? 0 : 16383 / max.f);
    vi code[64 / VL];
    UNROLL for (int i = 0; i < 64 / VL; i++)
        code[i] = vi_from_float(vf_mul(x[i], inverse));
    vi_store_halves(high, low, code);
    return max.u >= 0x7f800000 ? NAN : max.f * (1.0f / 16383);
}

/* The same as add_values for R rows and one chunk of coded values; keys from a multiple of 4. */
INLINE void add_codes(const attn *s, int row, int from, int to, int chunk, const int R, const int type)
{
    enum { D = OX_CHUNK / VL };
    vb table = vb_table(ox_codes_kv);
    uint8_t weight[4][2][64];
    float unit[4];
    vi t[4][2][D];
    UNROLL for (int r = 0; r < R; r++) {
        unit[r] = weigh(s, row + r, chunk, weight[r][0], weight[r][1]);
        UNROLL for (int d = 0; d < D; d++)
            t[r][0][d] = t[r][1][d] = vi_zero();
    }
    for (int key = from; key < to; key += 4) {
        int at = key % 16 * s->dims + chunk * OX_CHUNK * 4;
        const uint8_t *codes = s->v_panel[key / 16] + at / (512 / CODE_BYTES(type));
        const uint8_t *next = s->v_next[key / 16] + at / (512 / CACHED_CODE_BYTES(type));
        vb v[D];
        if (row == 0)
            for (int d = 0; d < CACHED_CODE_BYTES(type) / 4; d += 64)
                ask(next + d);
        UNROLL for (int d = 0; d < D; d++)
            v[d] = code_vector(codes, d, D, table, type);
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int part = 0; part < 2; part++) {
                vb w = vb_set4(weight[r][part] + key);
                UNROLL for (int d = 0; d < D; d++)
                    t[r][part][d] = vi_dot(t[r][part][d], w, v[d]);
            }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int d = 0; d < D; d++) {
            float *acc = s->acc + (row + r) * s->dims + chunk * OX_CHUNK + d * VL;
            vf x = vf_from_int(vi_add(vi_shl(t[r][0][d], 7), t[r][1][d]));
            vf_store(acc, vf_fma(x, vf_set1(unit[r]), vf_mul(vf_load(acc), vf_set1(s->correction[row + r]))));
        }
}

/* Scales of the keys [from, to) of this tile's values, zero elsewhere: there may be anything. */
INLINE void load_value_scales(const attn *s, int from, int to, const int type)
{
    int codes = CODE_BYTES(type) / 32 * s->dims, cached = CACHED_CODE_BYTES(type) / 32 * s->dims;
    for (int chunk = 0; chunk < s->dims / OX_CHUNK; chunk++)
        for (int key = from / 16 * 16; key < 64; key += VL) {
            float *scale = s->v_scale + chunk * OX_ATTN_TILE + key;
            if (key % 16 == 0)
                ask(s->v_next[key / 16] + cached + 32 * chunk);
            if (key < to)
                vf_store(scale, vf_from_half((const uint16_t *)(s->v_panel[key / 16] + codes) + 16 * chunk + key % 16));
            for (int r = 0; r < VL; r++)
                if (key + r < from || key + r >= to)
                    scale[r] = 0;
        }
    for (int chunk = 0; chunk < s->dims / OX_CHUNK; chunk++)
        for (int key = 0; key < from / 16 * 16; key++)
            s->v_scale[chunk * OX_ATTN_TILE + key] = 0;
}

INLINE void code_values(const attn *s, int row, int rows, int from, int to, const int type)
{
    load_value_scales(s, from, to, type);
    for (int end = row + rows; row < end;) {
        int r = end - row >= CODE_ROWS ? CODE_ROWS : 1;
        for (int chunk = 0; chunk < s->dims / OX_CHUNK; chunk++)
            if (r == 1)
                add_codes(s, row, from / 4 * 4, to, chunk, 1, type);
            else
                add_codes(s, row, from / 4 * 4, to, chunk, CODE_ROWS, type);
        row += r;
    }
}

INLINE void values_of(const attn *s, int row, int rows, int from, int to, const int type)
{
    if (IS_CODED(type))
        code_values(s, row, rows, from, to, type);
    else
        float_values(s, row, rows, from, to, type);
}

/* Each type's products are functions of their own, called once for a tile of keys: inlined wherever attention and an
 * index need them, they took the compiler half of the time of a tier's table. */
#define EACH_TYPE(f)                                                                  \
    f(f32, OX_KV_F32) f(f16, OX_KV_F16) f(q8_0, OX_KV_Q8_0) f(q4_0, OX_KV_Q4_0)       \
    f(converted, CONVERTED) f(unpacked, UNPACKED)
#define TYPE_PRODUCTS(name, type)                                                                    \
    APART_ON_LINE void score_tile_##name(const attn *s, int n_keys) { score_tile(s, n_keys, type); } \
    APART_ON_LINE void values_of_##name(const attn *s, int row, int rows, int from, int to)          \
    {                                                                                                \
        values_of(s, row, rows, from, to, type);                                                     \
    }
EACH_TYPE(TYPE_PRODUCTS)

INLINE void score_tile_of_type(const attn *s, int n_keys, const int type)
{
#define SCORES(name, of) case of: score_tile_##name(s, n_keys); break;
    switch (type) { EACH_TYPE(SCORES) }
#undef SCORES
}

INLINE void values_of_type(const attn *s, int row, int rows, int from, int to, const int type)
{
#define VALUES(name, of) case of: values_of_##name(s, row, rows, from, to); break;
    switch (type) { EACH_TYPE(VALUES) }
#undef VALUES
}
