/* Quantisers of super-blocks with minima: x = d scale q - dmin min, sub-blocks having a scale and a minimum. */

typedef struct { halves d, dmin; lf scale[MAX_SUB], min[MAX_SUB], error; } mins_fit;
/* sub-blocks of n values; codes 0..top; integers 0..limit */
typedef struct { int sub, n; float top, limit; } mins_format;

/* Sums from which the halves are fitted again, with all integers given. */
typedef struct { lf ss, sm, mm, sx, mx; } mins_sums;

/* What one sub-block's codes add up to, under a scale step and a minimum. */
typedef struct { lf error, q1, q2, x1, xq; } code_sums;

INLINE code_sums sum_codes(const lf *x, int n, float top, lf step, lf min)
{
    lf inv = inverse(step);
    code_sums s = {{0}, {0}, {0}, {0}, {0}};
    for (int j = 0; j < n; j++) {
        lf q = nearest(clamp((x[j] + min) * inv, 0, top)), left = x[j] - (step * q - min);
        s.error += left * left;
        s.q1 += q;
        s.q2 += q * q;
        s.x1 += x[j];
        s.xq += x[j] * q;
    }
    return s;
}

/* Integers for d and dmin, starting from those that are wanted: a scale, or one beside it, and the minimum that fits
 * the codes which that gives. */
INLINE void choose_mins(const blocks *b, mins_format f, const lf *wanted, const lf *wanted_min, lf d, lf dmin,
                        mins_fit *out, mins_sums *sums)
{
    to_halves(d * b->up, out->d);
    to_halves(dmin * b->up, out->dmin);
    d = lf_half(out->d) * b->down;
    dmin = lf_half(out->dmin) * b->down;
    lf inv = inverse(d), inv_min = inverse(dmin);
    out->error = (lf){0};
    memset(sums, 0, sizeof *sums);
    for (int s = 0; s < f.sub; s++) {
        const lf *x = b->x + f.n * s;
        lf scale0 = nearest(clamp(wanted[s] * inv, 0, f.limit));
        lf min0 = nearest(clamp(wanted_min[s] * inv_min, 0, f.limit));
        code_sums best = {{0}, {0}, {0}, {0}, {0}};
        for (int k = 0; k < 6; k++) { /* scales 0, +1, -1; each with the first minimum, then with its own */
            lf scale = clamp(scale0 + (k / 2 == 2 ? -1.0f : (float)(k / 2)), 0, f.limit), min = min0;
            if (k % 2) {
                code_sums c = sum_codes(x, f.n, f.top, d * scale, dmin * min0);
                min = nearest(clamp((d * scale * c.q1 - c.x1) * (1.0f / (float)f.n) * inv_min, 0, f.limit));
            }
            code_sums c = sum_codes(x, f.n, f.top, d * scale, dmin * min);
            li better = k ? c.error < best.error : c.error == c.error;
            best.error = pick(better, c.error, best.error);
            best.q1 = pick(better, c.q1, best.q1);
            best.q2 = pick(better, c.q2, best.q2);
            best.x1 = pick(better, c.x1, best.x1);
            best.xq = pick(better, c.xq, best.xq);
            out->scale[s] = pick(better, scale, out->scale[s]);
            out->min[s] = pick(better, min, out->min[s]);
        }
        lf scale = out->scale[s], min = out->min[s];
        out->error += best.error;
        sums->ss += scale * scale * best.q2;
        sums->sm += scale * min * best.q1;
        sums->mm += min * min * (float)f.n;
        sums->sx += scale * best.xq;
        sums->mx += min * best.x1;
    }
}

INLINE void keep_mins(const mins_fit *a, mins_fit *best, int sub)
{
    li better = a->error < best->error;
    pick_halves(better, a->d, best->d);
    pick_halves(better, a->dmin, best->dmin);
    best->error = pick(better, a->error, best->error);
    for (int s = 0; s < sub; s++) {
        best->scale[s] = pick(better, a->scale[s], best->scale[s]);
        best->min[s] = pick(better, a->min[s], best->min[s]);
    }
}

/* The least squares of x = d (scale q) - dmin min over the super-block: two equations. */
INLINE void refit_mins(const mins_sums *s, lf *d, lf *dmin)
{
    lf determinant = s->ss * s->mm - s->sm * s->sm;
    li both = (determinant > 1e-6f * (s->ss * s->mm)) & (s->mm > 0);
    lf inv = inverse(determinant);
    *d = lf_max(pick(both, (s->sx * s->mm - s->sm * s->mx) * inv, (s->sx + *dmin * s->sm) * inverse(s->ss)), (lf){0});
    *dmin = lf_max(pick(both, (s->sm * s->sx - s->ss * s->mx) * inv, *dmin), (lf){0});
}

/* `tops`: what integers the largest scale may take. */
INLINE void fit_mins(const blocks *b, mins_format f, line_grid grid, const float *tops, int n_tops,
                     mins_fit *best, codes q)
{
    lf wanted[MAX_SUB], wanted_min[MAX_SUB], x[32], largest = {0}, deepest = {0};
    for (int s = 0; s < f.sub; s++) {
        lf low = {0};
        for (int j = 0; j < f.n; j++)
            low = lf_min(b->x[f.n * s + j], low);
        for (int j = 0; j < f.n; j++)
            x[j] = b->x[f.n * s + j] - low;
        line_fit line = fit_line(x, f.n, f.top, -low, grid);
        wanted[s] = line.d;
        wanted_min[s] = -(line.o + low);
        largest = lf_max(wanted[s], largest);
        deepest = lf_max(wanted_min[s], deepest);
    }
    for (int t = 0; t < n_tops; t++) {
        mins_fit fit;
        mins_sums sums;
        lf d = largest * (1 / tops[t]), dmin = deepest * (1 / tops[t]);
        for (int k = 0; k < 2; k++) {
            choose_mins(b, f, wanted, wanted_min, d, dmin, &fit, &sums);
            if (t == 0 && k == 0)
                *best = fit;
            keep_mins(&fit, best, f.sub);
            refit_mins(&sums, &d, &dmin);
        }
    }
    for (int s = 0; s < f.sub; s++) {
        lf step = lf_half(best->d) * b->down * best->scale[s], min = lf_half(best->dmin) * b->down * best->min[s];
        lf inv = inverse(step);
        for (int j = 0; j < f.n; j++) {
            lf code = nearest(clamp((b->x[f.n * s + j] + min) * inv, 0, f.top));
            for (int l = 0; l < LANES; l++)
                q[l][f.n * s + j] = (uint8_t)code[l];
        }
    }
}

static const line_grid grid_q2_k = {2.4f, 0.3f, 8}, grid_q4_k = {13.5f, 0.25f, 17}, grid_q5_k = {29.5f, 0.25f, 15};
static const float tops_q2_k[] = {15, 13.8f, 14.5f, 16};
static const float tops_q4_k[] = {63};

#define FIT_MINS(sub, n, top, limit, grid, tops)                                    \
    mins_format f = {sub, n, top, limit};                                           \
    mins_fit fit;                                                                   \
    (void)d;                                                                        \
    fit_mins(&v, f, grid, tops, LENGTH(tops), &fit, q)

QUANTISER(Q2_K, ox_q2_k, 256, FIT_MINS(16, 16, 3, 15, grid_q2_k, tops_q2_k),
          b.d = fit.d[l]; b.dmin = fit.dmin[l]; pack_pairs(b.qs, q[l], 256, 32);
          for (int s = 0; s < 16; s++) b.scales[s] = (uint8_t)((int)fit.scale[s][l] | (int)fit.min[s][l] << 4))

/* The inverse of ox_scale_min_k4. */
static void pack_scales_k4(uint8_t *packed, const mins_fit *fit, int l)
{
    for (int j = 0; j < 4; j++) {
        int scale = (int)fit->scale[j][l], min = (int)fit->min[j][l];
        int scale4 = (int)fit->scale[j + 4][l], min4 = (int)fit->min[j + 4][l];
        packed[j] = (uint8_t)(scale | (scale4 >> 4) << 6);
        packed[j + 4] = (uint8_t)(min | (min4 >> 4) << 6);
        packed[j + 8] = (uint8_t)((scale4 & 15) | (min4 & 15) << 4);
    }
}

/* The low four bits of codes: those of two sub-blocks in the bytes of one. */
INLINE void pack_low_bits(uint8_t *qs, const uint8_t *q)
{
    for (int j = 0; j < 128; j++) {
        const uint8_t *pair = q + j / 32 * 64 + j % 32;
        qs[j] = (uint8_t)((pair[0] & 15) | (pair[32] & 15) << 4);
    }
}
QUANTISER(Q4_K, ox_q4_k, 256, FIT_MINS(8, 32, 15, 63, grid_q4_k, tops_q4_k),
          b.d = fit.d[l]; b.dmin = fit.dmin[l]; pack_scales_k4(b.scales, &fit, l); pack_low_bits(b.qs, q[l]))

INLINE void pack_high_bits(uint8_t *qh, const uint8_t *q)
{
    memset(qh, 0, 32);
    for (int j = 0; j < 256; j++)
        qh[j % 32] |= (uint8_t)((q[j] >> 4) << j / 32);
}
QUANTISER(Q5_K, ox_q5_k, 256, FIT_MINS(8, 32, 31, 63, grid_q5_k, tops_q4_k),
          b.d = fit.d[l]; b.dmin = fit.dmin[l]; pack_scales_k4(b.scales, &fit, l); pack_low_bits(b.qs, q[l]);
          pack_high_bits(b.qh, q[l]))
