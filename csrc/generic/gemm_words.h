/* Matrix products of the formats whose packed blocks are interleaved words, and the slots that they fill. Q8_1 and Q8_K
 * are other programs' formats of activations: NEVER is slower for them, and compiles least. */
#include "q8.h"
#include "q8_words.h"

FORM_Q8(signed_bytes, SIGNED_BYTES)
FORM_Q8(offset_2, OFFSET(2, 0))
FORM_Q8(halves_mins_2, HALVES_MINS(2))
FORM_Q8(halves_3, HALVES(3, 2))
FORM_Q8(offset_5, OFFSET(5, 4))
FORM_Q8(float_halves_5, FLOAT_HALVES(5, 4))

GEMM_Q8(Q8_1, q8_1, 1, signed_bytes, NEVER)
GEMM_Q8(Q8_K, q8_k, 8, signed_bytes, NEVER)
GEMM_Q8(Q1_0, q1_0, 4, offset_2, ONE_TILE)
GEMM_Q8(Q2_0, q2_0, 2, offset_2, ONE_TILE)
GEMM_Q8(Q2_K, q2_k, 8, halves_mins_2, ONE_TILE)
GEMM_Q8(Q3_K, q3_k, 8, halves_3, NEVER)
GEMM_Q8(TQ1_0, tq1_0, 8, offset_2, ONE_TILE)
GEMM_Q8(TQ2_0, tq2_0, 8, offset_2, ONE_TILE)
GEMM_Q8(IQ4_NL, iq4_nl, 1, signed_bytes, ALWAYS)
GEMM_Q8(IQ4_XS, iq4_xs, 8, signed_bytes, ONE_TILE)
GEMM_Q8(MXFP4, mxfp4, 1, offset_5, ALWAYS)
GEMM_Q8(NVFP4, nvfp4, 2, float_halves_5, ONE_TILE)

static void fill_gemm(ox_kernels *t)
{
    t->gemm[OX_Q8_1] = gemm_Q8_1;
    t->gemm[OX_Q8_K] = gemm_Q8_K;
    t->gemm[OX_Q1_0] = gemm_Q1_0;
    t->gemm[OX_Q2_0] = gemm_Q2_0;
    t->gemm[OX_Q2_K] = gemm_Q2_K;
    t->gemm[OX_Q3_K] = gemm_Q3_K;
    t->gemm[OX_TQ1_0] = gemm_TQ1_0;
    t->gemm[OX_TQ2_0] = gemm_TQ2_0;
    t->gemm[OX_IQ4_NL] = gemm_IQ4_NL;
    t->gemm[OX_IQ4_XS] = gemm_IQ4_XS;
    t->gemm[OX_MXFP4] = gemm_MXFP4;
    t->gemm[OX_NVFP4] = gemm_NVFP4;
}
