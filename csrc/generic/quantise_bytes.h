/* Quantisers of the formats whose scales are a byte, and floats themselves: E8M0 (MXFP4), E4M3 (NVFP4). Few such
 * scales lie near the right one, so the codes of each are tried. */

typedef float byte_value(uint8_t byte);

/* Of the bytes first + from .. first + to, kept within 0..last, the one that leaves the least error. */
INLINE void fit_byte(const lf *x, int n, lf down, byte_value *value, const int *first, int from, int to, int last,
                     uint8_t *best, int at, codes q)
{
    lf least = {0}, scale = {0};
    int bytes[LANES] = {0};
    for (int k = from; k <= to; k++) {
        lf d = {0};
        int tried[LANES];
        for (int l = 0; l < LANES; l++) {
            tried[l] = first[l] + k < 0 ? 0 : first[l] + k > last ? last : first[l] + k;
            d[l] = value((uint8_t)tried[l]);
        }
        d *= down;
        lf error = scale_error(x, n, code_fp4, d);
        li better = k > from ? error < least : least == least;
        for (int l = 0; l < LANES; l++)
            bytes[l] = better[l] ? tried[l] : bytes[l];
        least = pick(better, error, least);
        scale = pick(better, d, scale);
    }
    store_codes(x, n, index_fp4, scale, 0, at, q);
    for (int l = 0; l < LANES; l++)
        best[l] = (uint8_t)bytes[l];
}

/* The peak, 1 to 2 in the units of the blocks, may take the codes up to 12, which stand for 6. */
static void fit_mxfp4(const blocks *v, uint8_t *e, codes q)
{
    int first[LANES];
    for (int l = 0; l < LANES; l++)
        first[l] = ((li)v->up)[l] >> 23;
    fit_byte(v->x, 32, v->down, ox_e8m0_half, first, -3, 0, 254, e, 0, q);
}

static void fit_nvfp4(const blocks *v, uint8_t e[4][LANES], codes q)
{
    for (int s = 0; s < 4; s++) {
        const lf *x = v->x + 16 * s;
        lf wanted = lf_abs(peak(x, 16)) * v->up * (1.0f / 12) * 0x1p-119f; /* its bits: seven of E4M3, then more */
        int first[LANES];
        for (int l = 0; l < LANES; l++)
            first[l] = ((li)wanted)[l] >> 20;
        fit_byte(x, 16, v->down, ox_e4m3_half, first, -2, 3, 0x7e, e[s], 16 * s, q);
    }
}

/* Sixteen values in eight bytes: low nibbles, then high ones. */
INLINE void pack_nvfp4(uint8_t *qs, const uint8_t *q)
{
    for (int j = 0; j < 32; j++)
        qs[j] = (uint8_t)(q[16 * (j / 8) + j % 8] | q[16 * (j / 8) + 8 + j % 8] << 4);
}

QUANTISER(MXFP4, ox_mxfp4, 32, (void)d; uint8_t e[LANES]; fit_mxfp4(&v, e, q), b.e = e[l]; pack_nibbles(b.qs, q[l]))
QUANTISER(NVFP4, ox_nvfp4, 64, (void)d; uint8_t e[4][LANES]; fit_nvfp4(&v, e, q),
          for (int s = 0; s < 4; s++) b.d[s] = e[s][l];
          pack_nvfp4(b.qs, q[l]))
