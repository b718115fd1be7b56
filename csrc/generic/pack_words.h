/* Packing of the formats whose words are interleaved as they are, floats of 32 and pairs of 16 bits among them; after
 * pack.h. */
/* Words of VL rows, at least four of each: word v of all of them to dst + 64 * v. */
INLINE void put_words(const uint8_t *src, size_t stride, size_t n_words, uint8_t *dst)
{
    for (size_t v = 0; v < n_words; v += 4) {
        size_t first = v + 4 <= n_words ? v : n_words - 4; /* the last ones again: nothing behind them is read */
        vi w[4];
        four_words(src + 4 * first, stride, w);
        for (int i = 0; i < 4; i++)
            store(dst + 64 * (first + (size_t)i), w[i]);
    }
}

/* A format as scalar/words.c describes it. */
typedef struct { size_t values, bytes, head_at, unit, units; } layout;

INLINE void pack_blocks(layout f, const uint8_t *src, size_t stride, int64_t k, uint8_t *panel)
{
    size_t head = f.unit * f.units, words_at = f.head_at ? 0 : head, n_blocks = (size_t)k / f.values;
    for (size_t b = 0; b < n_blocks; b++, src += f.bytes, panel += 16 * f.bytes) {
        for (size_t r = 0; r < OX_PANEL; r++)
            for (size_t u = 0; u < f.units; u++)
                memcpy(panel + (u * OX_PANEL + r) * f.unit, src + r * stride + f.head_at + u * f.unit, f.unit);
        for (size_t half = 0; half < NV; half++)
            put_words(src + half * VL * stride + words_at, stride, (f.bytes - head) / 4, panel + 16 * head + VB * half);
    }
}

#define WORDS(name, values, bytes, head_at, unit, units)                                                \
    ox_pack_fn ox_pack_##name;                                                                           \
    static void pack_##name(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)      \
    {                                                                                                    \
        if (n_rows < OX_PANEL || (bytes - unit * units) / 4 < 4)                                         \
            ox_pack_##name(src, stride, n_rows, k, panel);                                               \
        else                                                                                             \
            pack_blocks((layout){values, bytes, head_at, unit, units}, src, stride, k, panel);           \
    }
/* One block of a whole row. */
WORDS(F32, (size_t)k, (size_t)k * 4, 0, 4, 0)
WORDS(Q4_1, 32, sizeof(ox_q4_1), 0, 2, 2)
WORDS(Q8_1, 32, sizeof(ox_q8_1), 0, 2, 2)
WORDS(Q8_K, 256, sizeof(ox_q8_k), 0, 2, 0)
WORDS(Q1_0, 128, sizeof(ox_q1_0), 0, 2, 1)
WORDS(Q2_0, 64, sizeof(ox_q2_0), 0, 2, 1)
WORDS(Q2_K, 256, sizeof(ox_q2_k), 80, 2, 2)
WORDS(Q3_K, 256, sizeof(ox_q3_k), 108, 2, 1)
WORDS(TQ1_0, 256, sizeof(ox_tq1_0), 52, 2, 1)
WORDS(TQ2_0, 256, sizeof(ox_tq2_0), 64, 2, 1)
WORDS(MXFP4, 32, sizeof(ox_mxfp4), 0, 1, 1)
WORDS(NVFP4, 64, sizeof(ox_nvfp4), 0, 2, 0)
WORDS(IQ4_NL, 32, sizeof(ox_iq4_nl), 0, 2, 1)
WORDS(IQ4_XS, 256, sizeof(ox_iq4_xs), 0, 2, 2)
WORDS(IQ2_XXS, 256, sizeof(ox_iq2_xxs), 0, 2, 1)
WORDS(IQ2_XS, 256, sizeof(ox_iq2_xs), 0, 2, 1)
WORDS(IQ2_S, 256, sizeof(ox_iq2_s), 0, 2, 1)
WORDS(IQ3_XXS, 256, sizeof(ox_iq3_xxs), 0, 2, 1)
WORDS(IQ3_S, 256, sizeof(ox_iq3_s), 0, 2, 1)
WORDS(IQ1_S, 256, sizeof(ox_iq1_s), 0, 2, 1)
WORDS(IQ1_M, 256, sizeof(ox_iq1_m), 0, 2, 0)

ox_pack_fn ox_pack_BF16;

static void pack_BF16(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL || k % 2 || k < 8) {
        ox_pack_BF16(src, stride, n_rows, k, panel);
        return;
    }
    for (size_t half = 0; half < NV; half++)
        put_words((const uint8_t *)src + half * VL * stride, stride, (size_t)k / 2, (uint8_t *)panel + VB * half);
}

#define PUT(name) t->pack[OX_##name] = pack_##name;
static void fill_pack_words(ox_kernels *t)
{
    PUT(F32) PUT(BF16) PUT(Q4_1) PUT(Q8_1) PUT(Q8_K) PUT(Q1_0) PUT(Q2_0) PUT(Q2_K) PUT(Q3_K) PUT(TQ1_0) PUT(TQ2_0)
    PUT(MXFP4) PUT(NVFP4) PUT(IQ4_NL) PUT(IQ4_XS) PUT(IQ2_XXS) PUT(IQ2_XS) PUT(IQ2_S) PUT(IQ3_XXS) PUT(IQ3_S) PUT(IQ1_S)
    PUT(IQ1_M)
}
