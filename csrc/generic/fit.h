/* Scales of blocks by least squares. With codes q given, |x - d q|^2 is least for d = xq / qq, where it falls by
 * xq^2 / qq from |x|^2 (xq and qq are sums of products); with d given, the nearest codes are best. So candidates of
 * d from a grid are compared by what they explain, each refitted to its own codes, and the best one goes on
 * refitting. What is stored is chosen by the error that it really leaves: neighbours of the rounded scale are tried
 * too. */

/* The code value nearest to v. */
typedef lf code_fn(lf v);

typedef struct { lf explained, d; } scale_fit;

INLINE void try_inverse(const lf *x, int n, code_fn *code, lf inv, scale_fit *best)
{
    lf xq = {0}, qq = {0};
    for (int j = 0; j < n; j++) {
        lf q = code(x[j] * inv);
        xq += x[j] * q;
        qq += q * q;
    }
    lf d = xq * inverse(qq), explained = xq * d;
    li better = explained > best->explained;
    best->explained = pick(better, explained, best->explained);
    best->d = pick(better, d, best->d);
}

/* The value of largest magnitude, with its sign. */
INLINE lf peak(const lf *x, int n)
{
    lf top = {0};
    for (int j = 0; j < n; j++)
        top = pick(lf_abs(x[j]) > lf_abs(top), x[j], top);
    return top;
}

/* `grid` holds what codes the peak may take: small ones leave codes unused, large ones clip it. The first gives it the
 * code of largest magnitude, and `plain` that scale, unfitted. */
INLINE lf fit_scale(const lf *x, int n, code_fn *code, const float *grid, int n_grid, lf *plain)
{
    lf top = peak(x, n), inv = inverse(top);
    scale_fit best = {{0}, {0}};
    *plain = top * (1 / grid[0]);
    for (int k = 0; k < n_grid; k++)
        try_inverse(x, n, code, inv * grid[k], &best);
    for (int k = 0; k < 2; k++)
        try_inverse(x, n, code, inverse(best.d), &best);
    return best.d;
}

/* What is left of x by the nearest codes of scale d. */
INLINE lf scale_error(const lf *x, int n, code_fn *code, lf d)
{
    lf inv = inverse(d), error = {0};
    for (int j = 0; j < n; j++) {
        lf left = x[j] - d * code(x[j] * inv);
        error += left * left;
    }
    return error;
}

/* The half near d, or the one of the plain scale, that leaves the least error; returns it in the units of the
 * blocks. */
INLINE lf fit_half(const blocks *b, int n, code_fn *code, lf d, lf plain, halves best)
{
    halves first, h;
    to_halves(d * b->up, first);
    memcpy(best, first, sizeof first);
    lf least = scale_error(b->x, n, code, lf_half(first) * b->down);
    for (int k = 0; k < 3; k++) {
        if (k < 2)
            neighbours(first, k ? 1 : -1, h);
        else
            to_halves(plain * b->up, h);
        lf error = scale_error(b->x, n, code, lf_half(h) * b->down);
        pick_halves(error < least, h, best);
        least = lf_min(error, least);
    }
    return lf_half(best) * b->down;
}

/* Codes as stored: those of code() less the lowest one. */
INLINE void store_codes(const lf *x, int n, code_fn *code, lf d, float lowest, int at, codes out)
{
    lf inv = inverse(d);
    for (int j = 0; j < n; j++) {
        lf q = code(x[j] * inv) - lowest;
        for (int l = 0; l < LANES; l++)
            out[l][at + j] = (uint8_t)q[l];
    }
}

/* x = d q + o with codes 0..top. */
typedef struct { lf error, d, o; } line_fit;

/* Fits d and o (not above `ceiling`) to the codes that x has under them. */
INLINE void try_line(const lf *x, int n, float top, lf d, lf o, lf ceiling, line_fit *best)
{
    lf inv = inverse(d), q1 = {0}, q2 = {0}, x1 = {0}, x2 = {0}, xq = {0};
    for (int j = 0; j < n; j++) {
        lf q = nearest(clamp((x[j] - o) * inv, 0, top));
        q1 += q;
        q2 += q * q;
        x1 += x[j];
        x2 += x[j] * x[j];
        xq += x[j] * q;
    }
    float count = (float)n;
    lf slope = (count * xq - x1 * q1) * inverse(count * q2 - q1 * q1);
    lf offset = lf_min((x1 - slope * q1) / count, ceiling);
    slope = lf_max((xq - offset * q1) * inverse(q2), (lf){0});
    lf error = x2 - 2.0f * (slope * xq + offset * x1 - slope * offset * q1) + slope * slope * q2
        + offset * offset * count;
    li better = error < best->error;
    best->error = pick(better, error, best->error);
    best->d = pick(better, slope, best->d);
    best->o = pick(better, offset, best->o);
}

/* The range of x may take first, first + step, ... codes: fewer than there are leave some unused, more clip it. */
typedef struct { float first, step; int count; } line_grid;

/* Each of the grid twice: from the least value up, and clipping both ends alike. x must be moved so that its least
 * value is 0, for precision. */
INLINE line_fit fit_line(const lf *x, int n, float top, lf ceiling, line_grid g)
{
    lf high = {0}, low = lf_min(ceiling, (lf){0}), x2 = {0};
    for (int j = 0; j < n; j++) {
        high = lf_max(x[j], high);
        x2 += x[j] * x[j];
    }
    line_fit best = {x2 + 1.0f, {0}, low};
    for (int k = 0; k < g.count; k++) {
        float taken = g.first + g.step * (float)k;
        lf d = (high - low) / taken;
        try_line(x, n, top, d, low, ceiling, &best);
        if (taken > top)
            try_line(x, n, top, d, low + 0.5f * (taken - top) * d, ceiling, &best);
    }
    for (int k = 0; k < 2; k++)
        try_line(x, n, top, best.d, best.o, ceiling, &best);
    return best;
}
