/* The two matrix products of attention, on one tile of 64 keys. Keys lie in panels of 16 tokens, so that scores are lanes
 * and need no horizontal sum; values lie in rows, so that outputs are lanes. All rows share each load. */

typedef struct {
    const ox_attn_args *a;
    int rows, dims, chunks;            /* dims: v_dim padded; chunks: of 32 values of a key */
    const uint8_t *k_panel[4], *v_panel[4]; /* of this tile, in the cache or converted */
    float *q;                          /* blocks of R rows: [k_dim][R]; or codes [chunks][8][R][4] */
    float *q_scale;                    /* for codes: scales [chunks][R], then start values int32 [chunks][R] */
    float *scores;                     /* [rows][64], after the softmax: weights */
    float *correction;                 /* [rows]: what earlier sums are multiplied with */
    float *acc, *max, *sum;            /* of this span: [rows][dims], [rows], [rows]; row = query * group + head */
    float *k_tile, *v_tile, *v_scale;  /* converted keys and values, shares of scales of values [chunks of v][64] */
    float *v_top;                      /* [chunks of v]: the largest of these scales */
    int8_t *codes;                     /* one quantised query */
} attn;

/* Accumulators in registers of a block of scores: as many vectors of keys as fit beside the rows. */
#ifndef SCORE_ACC
#define SCORE_ACC (SCORE_ROWS * NV)
#endif
#define SCORE_VECTORS(R) (SCORE_ACC / (R) > 64 / VL ? 64 / VL : SCORE_ACC / (R) < NV ? NV : SCORE_ACC / (R))

/* How rows are divided into blocks, and in what order. */
INLINE int row_block(const attn *s, int row)
{
    int left = s->rows - row;
    return left >= SCORE_ROWS ? SCORE_ROWS : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

INLINE vf kv_load(const uint8_t *p, size_t i, const int type)
{
    return type == OX_KV_F16 ? vf_from_half((const uint16_t *)p + i) : vf_load((const float *)p + i);
}

/* Scores of R rows against N vectors of keys. */
INLINE void score_floats(const attn *s, int row, int key, const int R, const int N, const int type)
{
    const float *q = s->q + row * s->a->k_dim;
    const uint8_t *panel[4];
    vf acc[8][16];
    UNROLL for (int v = 0; v < N; v += NV)
        panel[v / NV] = s->k_panel[key / 16 + v / NV];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < N; v++)
            acc[r][v] = vf_zero();
    for (int i = 0; i < s->a->k_dim; i++, q += R) {
        vf k[16];
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
#define KEY_OFFSET 0
#else
INLINE vi key_dot(vi s, vb w, vb x) { return vi_dot(s, w, x); }
#define KEY_SIGN(w) (w)
#define KEY_OFFSET 128
#endif

/* Scores of R rows against one panel of 8-bit keys: integers within 32 values, floats between. */
INLINE void score_codes(const attn *s, int row, int key, const int R)
{
    const uint8_t *k = s->k_panel[key / 16], *q = (const uint8_t *)s->q + row * s->chunks * 32;
    const uint16_t *scale = (const uint16_t *)(k + 512 * s->chunks);
    const float *d = s->q_scale + 2 * row * s->chunks, *start = d + s->chunks * R;
    vf acc[8][NV];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < NV; v++)
            acc[r][v] = vf_zero();
    for (int c = 0; c < s->chunks; c++, k += 512, q += 32 * R, scale += 16, d += R, start += R) {
        UNROLL for (int v = 0; v < NV; v++) {
            vi t[8];
            vf ks = vf_from_half(scale + v * VL);
            UNROLL for (int r = 0; r < R; r++)
                t[r] = LOAD_I32((const uint8_t *)start + 4 * r);
            UNROLL for (int quad = 0; quad < 8; quad++) {
                vb w = KEY_SIGN(vb_load(k + 64 * quad + v * VB));
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
    for (; type != OX_KV_Q8_0 && key + SCORE_VECTORS(R) * VL <= n_keys; key += SCORE_VECTORS(R) * VL)
        score_floats(s, row, key, R, SCORE_VECTORS(R), type);
    for (; key < n_keys; key += 16)
        if (type == OX_KV_Q8_0)
            score_codes(s, row, key, R);
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
        const uint8_t *panel = s->v_panel[key / 16];
        int end = (key / 16 + 1) * 16;
        for (end = end < to ? end : to; key < end; key++) {
            vf v[8];
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

/* 8-bit values are weighed as integers. Of a row and a chunk of 32 values, the weights times the values' scales become
 * codes of 14 bits in a unit that both have a share in: the row's largest weight, and the chunk's largest scale among the
 * keys that the row sees. That is at least 64 times finer than the values' own codes, but for keys whose scale is far
 * below the largest, which count less. Products of integers are exact, so a tier may multiply pairs of 16 bits, or the
 * codes' two bytes of 7 bits by the values as they are stored. */
#define WEIGHT_TOP 16383
#define CODE_DIMS (OX_CHUNK / VL) /* vectors of a chunk */

/* The unit of a row's weights, and its inverse. The largest is taken as bits: NaN stands above infinity. */
INLINE float weight_unit(const float *p, float *inverse)
{
    union { uint32_t u; float f; } max;
    vi largest = vi_zero();
    UNROLL for (int i = 0; i < OX_ATTN_TILE; i += VL)
        largest = vi_max_u(largest, vi_magnitude(vf_load(p + i)));
    max.u = vi_reduce_max_u(largest);
    *inverse = max.u < 0x06000000 || max.u >= 0x7f800000 ? 0 : WEIGHT_TOP / max.f;
    return max.u >= 0x7f800000 ? NAN : max.f * (1.0f / WEIGHT_TOP);
}

/* A row's codes: 16 bits each, or bytes of their seven low bits, then bytes of the seven high ones. */
typedef int16_t weight_code;

INLINE void put_bytes(weight_code *row, int i, vi x)
{
    vi_store_i8((int8_t *)row + i, vi_and(x, vi_set1(127)));
    vi_store_i8((int8_t *)row + OX_ATTN_TILE + i, vi_shr(x, 7));
}

/* Sums over the fours of keys that hold [from, to), of one row. */
INLINE void dot_bytes(const attn *s, int from, int to, int chunk, const weight_code *code, vi *t)
{
    const uint8_t *low = (const uint8_t *)code, *high = low + OX_ATTN_TILE;
    vi more[CODE_DIMS];
    UNROLL for (int d = 0; d < CODE_DIMS; d++)
        more[d] = vi_zero();
    for (int key = from / 4 * 4; key < to; key += 4) {
        const uint8_t *codes = s->v_panel[key / 16] + (key % 16 * s->dims + chunk * OX_CHUNK * 4);
        vb w = vb_set4(low + key), w7 = vb_set4(high + key);
        UNROLL for (int d = 0; d < CODE_DIMS; d++) {
            vb v = vb_load(codes + d * VB);
            t[d] = vi_dot(t[d], w, v);
            more[d] = vi_dot(more[d], w7, v);
        }
    }
    UNROLL for (int d = 0; d < CODE_DIMS; d++)
        t[d] = vi_add(vi_shl(more[d], 7), t[d]);
}

#ifdef HAVE_WORD_DOTS
#define CODE_ROWS (VL == 16 ? 4 : 2) /* rows whose sums are in registers */
#define WIDE_ROWS (VL == 16 ? 8 : 4) /* rows from which converting a tile of values once costs less */

/* Values to 16 bits, in pairs of keys, [32 pairs][dims][2]. */
INLINE void widen_values(const attn *s, int n_keys)
{
    int16_t *wide = (int16_t *)s->v_tile;
    for (int quad = 0; 4 * quad < n_keys; quad++, wide += 4 * s->dims) {
        const uint8_t *codes = s->v_panel[quad / 4] + (size_t)(quad % 4 * s->dims) * 4;
        for (int d = 0; d < s->dims; d += VL) {
            vb v = vb_load(codes + 4 * d);
            vi_store_words(wide + 2 * d, vi_words(v, 0));
            vi_store_words(wide + 2 * (s->dims + d), vi_words(v, 1));
        }
    }
}

INLINE void put_words(weight_code *row, int i, vi x) { vi_store_i16(row + i, x); }

/* Sums over the pairs of keys that hold [from, to), of R rows. */
INLINE void dot_words(const attn *s, int from, int to, int chunk, weight_code (*code)[OX_ATTN_TILE], const int R,
                      vi (*t)[CODE_DIMS])
{
    const int16_t *v = (const int16_t *)s->v_tile + (size_t)(from / 2 * s->dims + chunk * OX_CHUNK) * 2;
    const weight_code *w = code[0] + from / 2 * 2, *end = code[0] + to;
    for (; w < end; w += 2, v += 2 * s->dims) {
        vb x[CODE_DIMS];
        UNROLL for (int d = 0; d < CODE_DIMS; d++)
            x[d] = vb_load((const uint8_t *)(v + 2 * d * VL));
        UNROLL for (int r = 0; r < R; r++) {
            vb p = vb_set4((const uint8_t *)(w + r * OX_ATTN_TILE));
            UNROLL for (int d = 0; d < CODE_DIMS; d++)
                t[r][d] = vi_dot_words(t[r][d], x[d], p);
        }
    }
}
#else
#define CODE_ROWS 1
#define WIDE_ROWS INT32_MAX
INLINE void widen_values(const attn *s, int n_keys) { (void)s, (void)n_keys; }
INLINE void put_words(weight_code *row, int i, vi x) { (void)row, (void)i, (void)x; }
INLINE void dot_words(const attn *s, int from, int to, int chunk, weight_code (*code)[OX_ATTN_TILE], const int R,
                      vi (*t)[CODE_DIMS])
{
    (void)s, (void)from, (void)to, (void)chunk, (void)code, (void)R, (void)t;
}
#endif

/* The same as add_values for R rows, all dimensions, of 8-bit values. */
INLINE void add_codes(const attn *s, int row, int from, int to, const int R, const int wide)
{
    float unit[CODE_ROWS], inverse[CODE_ROWS];
    UNROLL for (int r = 0; r < R; r++)
        unit[r] = weight_unit(s->scores + (row + r) * OX_ATTN_TILE, inverse + r);
    for (int chunk = 0; chunk < s->dims / OX_CHUNK; chunk++) {
        weight_code code[CODE_ROWS][OX_ATTN_TILE];
        const float *share = s->v_scale + chunk * OX_ATTN_TILE, top = s->v_top[chunk];
        vi t[CODE_ROWS][CODE_DIMS];
        UNROLL for (int r = 0; r < R; r++)
            for (int i = 0; i < OX_ATTN_TILE; i += VL) {
                vf p = vf_mul(vf_load(s->scores + (row + r) * OX_ATTN_TILE + i), vf_set1(inverse[r]));
                vi x = vi_from_float(vf_mul(p, vf_load(share + i)));
                if (wide)
                    put_words(code[r], i, x);
                else
                    put_bytes(code[r], i, x);
            }
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int d = 0; d < CODE_DIMS; d++)
                t[r][d] = vi_zero();
        if (wide)
            dot_words(s, from, to, chunk, code, R, t);
        UNROLL for (int r = 0; r < R && !wide; r++)
            dot_bytes(s, from, to, chunk, code[r], t[r]);
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int d = 0; d < CODE_DIMS; d++) {
                float *acc = s->acc + (row + r) * s->dims + chunk * OX_CHUNK + d * VL;
                vf old = vf_mul(vf_load(acc), vf_set1(s->correction[row + r]));
                vf_store(acc, vf_fma(vf_from_int(t[r][d]), vf_set1(unit[r] * top), old));
            }
    }
}

/* The largest scale of each chunk of this tile's values among the keys [from, to), and each key's share of it; zero
 * elsewhere: there may be anything. */
INLINE void load_value_scales(const attn *s, int from, int to)
{
    for (int chunk = 0; chunk < s->dims / OX_CHUNK; chunk++) {
        union { uint32_t u; float f; } top;
        float *scale = s->v_scale + chunk * OX_ATTN_TILE;
        vi largest = vi_zero();
        for (int key = 0; key < OX_ATTN_TILE; key += VL) {
            vf x = vf_zero();
            if (key + VL > from && key < to)
                x = vf_from_half((const uint16_t *)(s->v_panel[key / 16] + 16 * s->dims) + 16 * chunk + key % 16);
            vf_store(scale + key, x);
            for (int r = 0; r < VL && (key < from || key + VL > to); r++)
                if (key + r < from || key + r >= to)
                    scale[key + r] = 0;
            largest = vi_max_u(largest, vi_magnitude(vf_load(scale + key)));
        }
        top.u = vi_reduce_max_u(largest);
        s->v_top[chunk] = top.u >= 0x7f800000 ? NAN : top.f;
        for (int key = 0; top.f > 0 && key < OX_ATTN_TILE; key += VL)
            vf_store(scale + key, vf_div(vf_load(scale + key), vf_set1(top.f)));
    }
}

INLINE void code_values(const attn *s, int row, int rows, int from, int to)
{
    load_value_scales(s, from, to);
    for (int end = row + rows; row < end;)
        if (s->rows < WIDE_ROWS)
            add_codes(s, row++, from, to, 1, 0);
        else if (end - row >= CODE_ROWS) {
            add_codes(s, row, from, to, CODE_ROWS, 1);
            row += CODE_ROWS;
        } else
            add_codes(s, row++, from, to, 1, 1);
}

INLINE void values_of(const attn *s, int row, int rows, int from, int to, const int type)
{
    if (type == OX_KV_Q8_0)
        code_values(s, row, rows, from, to);
    else
        float_values(s, row, rows, from, to, type);
}
