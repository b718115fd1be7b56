/* Quantisers of super-blocks: 256 values in sub-blocks, whose scales are small integers times one half (and whose
 * minima are others times a second). Each sub-block is fitted alone; the halves follow from the largest scale; then
 * the integers and codes are chosen together, by the error that remains under the rounded halves, and the halves
 * refitted to them, as long as the super-block gains. */

#define MAX_SUB 16

/* Scales of sub-blocks and what they leave of x, under one half d. */
typedef struct { halves d; lf scale[MAX_SUB], error; } scaled_fit;
/* sub-blocks of n values; integers low..high */
typedef struct { int sub, n; code_fn *code; float low, high; } scaled_format;

/* Integer scales for d, starting from those that are wanted; and the d that fits their codes best. */
INLINE lf choose_scales(const blocks *b, scaled_format f, const lf *wanted, lf d, scaled_fit *out)
{
    to_halves(d * b->up, out->d);
    d = lf_half(out->d) * b->down;
    lf inv = inverse(d), sq = {0}, ss = {0};
    out->error = (lf){0};
    for (int s = 0; s < f.sub; s++) {
        const lf *x = b->x + f.n * s;
        lf least = {0}, xq = {0}, qq = {0};
        for (int k = 0; k < 3; k++) {
            lf whole = nearest(clamp(wanted[s] * inv, f.low, f.high));
            lf scale = clamp(whole + (k == 2 ? -1.0f : (float)k), f.low, f.high);
            lf step = d * scale, back = inverse(step), error = {0}, a = {0}, c = {0};
            for (int j = 0; j < f.n; j++) {
                lf q = f.code(x[j] * back), left = x[j] - step * q;
                error += left * left;
                a += x[j] * q;
                c += q * q;
            }
            li better = k ? error < least : least == least;
            least = pick(better, error, least);
            out->scale[s] = pick(better, scale, out->scale[s]);
            xq = pick(better, a, xq);
            qq = pick(better, c, qq);
        }
        out->error += least;
        sq += out->scale[s] * xq;
        ss += out->scale[s] * out->scale[s] * qq;
    }
    return sq * inverse(ss);
}

INLINE void keep_scales(const scaled_fit *a, scaled_fit *best, int sub)
{
    li better = a->error < best->error;
    pick_halves(better, a->d, best->d);
    best->error = pick(better, a->error, best->error);
    for (int s = 0; s < sub; s++)
        best->scale[s] = pick(better, a->scale[s], best->scale[s]);
}

INLINE void try_scales(const blocks *b, scaled_format f, const lf *wanted, lf d, scaled_fit *best)
{
    for (int k = 0; k < 2; k++) {
        scaled_fit fit;
        d = choose_scales(b, f, wanted, d, &fit);
        keep_scales(&fit, best, f.sub);
    }
}

/* `grid`: what codes the peak of a sub-block may take. `tops`: what integers the largest scale may take. */
INLINE void fit_scaled(const blocks *b, scaled_format f, const float *grid, int n_grid, const float *tops, int n_tops,
                       code_fn *index, float lowest, scaled_fit *best, codes q)
{
    lf wanted[MAX_SUB], plain[MAX_SUB];
    for (int s = 0; s < f.sub; s++)
        wanted[s] = fit_scale(b->x + f.n * s, f.n, f.code, grid, n_grid, &plain[s]);
    lf largest = peak(wanted, f.sub);
    choose_scales(b, f, plain, peak(plain, f.sub) * (1 / tops[0]), best);
    for (int t = 0; t < n_tops; t++)
        try_scales(b, f, wanted, largest * (1 / tops[t]), best);
    halves first, h;
    memcpy(first, best->d, sizeof first);
    for (int k = 0; k < 2; k++) {
        scaled_fit fit;
        neighbours(first, k ? 1 : -1, h);
        choose_scales(b, f, wanted, lf_half(h) * b->down, &fit);
        keep_scales(&fit, best, f.sub);
    }
    for (int s = 0; s < f.sub; s++)
        store_codes(b->x + f.n * s, f.n, index, lf_half(best->d) * b->down * best->scale[s], lowest, f.n * s, q);
}

INLINE lf code_q3(lf v) { return nearest(clamp(v, -4, 3)); }
INLINE lf code_q6(lf v) { return nearest(clamp(v, -32, 31)); }

static const float grid_q3[] = {-4, -4.5f, -3.7f, -3.4f, -3.1f, 3, 3.3f, 2.7f, -5};
static const float grid_q6[] = {-32, -33, -32.5f, -31.5f, -31, -30.5f, -30, 31};
static const float grid_iq4_xs[] = {-127, -135, -120, -110, -103, 113, 120, 105, 97, 89};
static const float tops_6[] = {-32, 31, -31, -29.5f};
static const float tops_8[] = {-128};

#define FIT_SCALED(sub, n, code, low, high, grid, tops, index, lowest)                                          \
    scaled_format f = {sub, n, code, low, high};                                                                \
    scaled_fit fit;                                                                                             \
    (void)d;                                                                                                    \
    fit_scaled(&v, f, grid, LENGTH(grid), tops, LENGTH(tops), index, lowest, &fit, q)

/* Where Q6_K keeps value j: its low four bits in ql, its high two in qh. */
static void pack_q6_k(ox_q6_k *b, const uint8_t *q)
{
    memset(b, 0, sizeof *b);
    for (int j = 0; j < 256; j++) {
        int half = j / 128, quarter = j % 128 / 32, l = j % 32;
        b->ql[64 * half + 32 * (quarter & 1) + l] |= (uint8_t)((q[j] & 15) << (quarter >> 1) * 4);
        b->qh[32 * half + l] |= (uint8_t)((q[j] >> 4) << 2 * quarter);
    }
}
QUANTISER(Q6_K, ox_q6_k, 256, FIT_SCALED(16, 16, code_q6, -128, 127, grid_q6, tops_8, code_q6, -32),
          pack_q6_k(&b, q[l]); b.d = fit.d[l];
          for (int s = 0; s < 16; s++) b.scales[s] = (int8_t)fit.scale[s][l])

static void pack_q3_k(ox_q3_k *b, const uint8_t *q, const scaled_fit *fit, int l)
{
    memset(b, 0, sizeof *b);
    b->d = fit->d[l];
    pack_pairs(b->qs, q, 256, 32);
    for (int j = 0; j < 256; j++)
        b->hmask[j % 32] |= (uint8_t)((q[j] >> 2) << j / 32);
    for (int s = 0; s < 16; s++) {
        int scale = (int)fit->scale[s][l] + 32;
        b->scales[s % 8] |= (uint8_t)((scale & 15) << 4 * (s / 8));
        b->scales[8 + s % 4] |= (uint8_t)((scale >> 4) << 2 * (s / 4));
    }
}
QUANTISER(Q3_K, ox_q3_k, 256, FIT_SCALED(16, 16, code_q3, -32, 31, grid_q3, tops_6, code_q3, -4),
          pack_q3_k(&b, q[l], &fit, l))

static void pack_iq4_xs(ox_iq4_xs *b, const uint8_t *q, const scaled_fit *fit, int l)
{
    memset(b, 0, sizeof *b);
    b->d = fit->d[l];
    for (int s = 0; s < 8; s++) {
        int scale = (int)fit->scale[s][l] + 32;
        pack_nibbles(b->qs + 16 * s, q + 32 * s);
        b->scales_l[s / 2] |= (uint8_t)((scale & 15) << 4 * (s % 2));
        b->scales_h |= (uint16_t)((scale >> 4) << 2 * s);
    }
}
QUANTISER(IQ4_XS, ox_iq4_xs, 256, FIT_SCALED(8, 32, code_iq4, -32, 31, grid_iq4_xs, tops_6, index_iq4, 0),
          pack_iq4_xs(&b, q[l], &fit, l))
