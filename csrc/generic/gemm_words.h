/* Matrix products of the formats whose packed blocks are interleaved words, and the slots that they fill. */
#include "q8.h"
#include "q8_words.h"

GEMM_Q8(Q8_1, q8_1, 1, SIGNED_BYTES, ALWAYS)
GEMM_Q8(Q8_K, q8_k, 8, SIGNED_BYTES, ALWAYS)
GEMM_Q8(Q1_0, q1_0, 4, OFFSET(2, 0), ONE_TILE)
GEMM_Q8(Q2_0, q2_0, 2, OFFSET(2, 0), ONE_TILE)
GEMM_Q8(Q2_K, q2_k, 8, HALVES_MINS(2), ONE_TILE)
GEMM_Q8(Q3_K, q3_k, 8, HALVES(3, 2), ONE_TILE)
GEMM_Q8(TQ1_0, tq1_0, 8, OFFSET(2, 0), ONE_TILE)
GEMM_Q8(TQ2_0, tq2_0, 8, OFFSET(2, 0), ONE_TILE)
GEMM_Q8(IQ4_NL, iq4_nl, 1, SIGNED_BYTES, ALWAYS)
GEMM_Q8(IQ4_XS, iq4_xs, 8, SIGNED_BYTES, ALWAYS)
GEMM_Q8(MXFP4, mxfp4, 1, OFFSET(5, 4), ALWAYS)
GEMM_Q8(NVFP4, nvfp4, 2, FLOAT_HALVES(5, 4), ONE_TILE)

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
