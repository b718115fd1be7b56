/* Functions of one variable, each lane by itself. NaN stays NaN: a bound is the first operand of vf_min and vf_max,
 * which return the second when one is NaN. */

/* Cody-Waite reduction to |r| <= ln(2)/2, then the Taylor polynomial of degree 7 (error 3e-9 relative there), scaled by
 * 2^n. Below -87.3 the result is zero, so that a masked score contributes exactly nothing. */
INLINE vf vf_exp(vf x)
{
    vf bounded = vf_min(vf_set1(88.0f), vf_max(vf_set1(-87.3f), x));
    vf n = vf_round(vf_mul(bounded, vf_set1(1.44269504f)));
    vf r = vf_fnma(n, vf_set1(0.693359375f), bounded);
    r = vf_fnma(n, vf_set1(-2.12194440e-4f), r);
    vf p = vf_fma(r, vf_set1(1.0f / 5040), vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_zero_below(vf_scale_exp2(p, n), x, vf_set1(-87.3f));
}

/* exp(x) - 1 for x <= 0: with exp, and by the Taylor polynomial (error 4e-9 relative) where the difference would lose
 * digits. */
INLINE vf vf_expm1(vf x)
{
    vf bound = vf_set1(-0.5f), near = vf_max(bound, x), p = vf_fma(near, vf_set1(1.0f / 40320), vf_set1(1.0f / 5040));
    p = vf_fma(p, near, vf_set1(1.0f / 720));
    p = vf_fma(p, near, vf_set1(1.0f / 120));
    p = vf_fma(p, near, vf_set1(1.0f / 24));
    p = vf_fma(p, near, vf_set1(1.0f / 6));
    p = vf_fma(p, near, vf_set1(0.5f));
    p = vf_fma(vf_mul(p, near), near, near);
    vf far = vf_sub(vf_exp(x), vf_set1(1)), shown = vf_sub(vf_set1(1), vf_zero_below(vf_set1(1), x, bound));
    return vf_add(vf_zero_below(p, x, bound), vf_mul(shown, far));
}

/* tanh: with exp, and by a polynomial (that of Cephes) where the difference would lose digits. */
INLINE vf vf_tanh(vf x)
{
    vf size = vf_max(vf_sub(vf_zero(), x), x), bound = vf_set1(0.625f);
    /* no infinity in what is masked off */
    vf near = vf_min(vf_set1(1), vf_max(vf_set1(-1), x)), z = vf_mul(near, near);
    vf p = vf_fma(vf_set1(-5.70498872745e-3f), z, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set1(-3.33332819422e-1f));
    p = vf_fma(vf_mul(p, z), near, near);
    vf e = vf_exp(vf_min(vf_set1(40), vf_add(x, x)));
    vf large = vf_sub(vf_set1(1), vf_div(vf_set1(2), vf_add(e, vf_set1(1))));
    vf small = vf_sub(vf_set1(1), vf_zero_below(vf_set1(1), size, bound));
    return vf_add(vf_mul(small, p), vf_zero_below(large, size, bound));
}

/* x / (1 + exp(-t)); x * 0 below -88, where vf_exp has reached its bound. */
INLINE vf vf_times_sigmoid(vf x, vf t)
{
    vf e = vf_exp(vf_sub(vf_zero(), t)), shown = vf_zero_below(vf_set1(1), t, vf_set1(-88));
    return vf_div(vf_mul(x, shown), vf_add(vf_set1(1), e));
}

/* The normal distribution function, (1 + erf(x / sqrt(2))) / 2. The tail is exp(-x^2 / 2) u P(u),
 * u = 1 / (1 + 0.3 |x|): the form of Hastings (Abramowitz and Stegun, 7.1.26), whose relative error is small
 * everywhere. P was fitted to 16 digits of erfc by least squares of relative errors, reweighted until they were even
 * (3e-9, of degree 9). The square is taken with its rounding error d, which the exponential would multiply by
 * x^2 / 2. */
INLINE vf vf_normal(vf x)
{
    vf size = vf_min(vf_set1(20), vf_max(vf_sub(vf_zero(), x), x)), square = vf_mul(size, size);
    vf d = vf_fnma(size, size, square), u = vf_div(vf_set1(1), vf_fma(vf_set1(0.3f), size, vf_set1(1)));
    vf p = vf_fma(vf_set1(-2.058472591e-2f), u, vf_set1(1.122175085e-1f));
    p = vf_fma(p, u, vf_set1(-2.276804735e-1f));
    p = vf_fma(p, u, vf_set1(1.910432868e-1f));
    p = vf_fma(p, u, vf_set1(-7.877875993e-2f));
    p = vf_fma(p, u, vf_set1(9.579380547e-2f));
    p = vf_fma(p, u, vf_set1(7.852168307e-2f));
    p = vf_fma(p, u, vf_set1(1.102055806e-1f));
    p = vf_fma(p, u, vf_set1(1.195756101e-1f));
    p = vf_fma(p, u, vf_set1(1.196864832e-1f));
    vf e = vf_exp(vf_mul(square, vf_set1(-0.5f)));
    vf tail = vf_mul(vf_mul(vf_fma(e, vf_mul(d, vf_set1(0.5f)), e), p), u);
    return vf_add(tail, vf_zero_below(vf_sub(vf_set1(1), vf_add(tail, tail)), x, vf_zero()));
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + e) with e = exp(-|x|), and log(1 + e) = 2 atanh(s) with s = e / (2 + e) <= 1/3:
 * nine terms of the series of atanh are exact to 2e-10 there. Zero below -87.3. NaN stays NaN: it is the second operand
 * of both maxima. */
INLINE vf vf_softplus(vf x)
{
    vf e = vf_exp(vf_sub(vf_zero(), vf_max(vf_sub(vf_zero(), x), x)));
    vf s = vf_div(e, vf_add(vf_set1(2), e)), s2 = vf_mul(s, s), p = vf_set1(2.0f / 17);
    p = vf_fma(p, s2, vf_set1(2.0f / 15));
    p = vf_fma(p, s2, vf_set1(2.0f / 13));
    p = vf_fma(p, s2, vf_set1(2.0f / 11));
    p = vf_fma(p, s2, vf_set1(2.0f / 9));
    p = vf_fma(p, s2, vf_set1(2.0f / 7));
    p = vf_fma(p, s2, vf_set1(2.0f / 5));
    p = vf_fma(p, s2, vf_set1(2.0f / 3));
    p = vf_fma(p, s2, vf_set1(2.0f));
    return vf_fma(p, s, vf_max(vf_zero(), x));
}
