/* Matrix products of the formats whose packed blocks are interleaved words, and the slots that they fill. */
#include "q8.h"
#include "q8_words.h"

GEMM_Q8(Q8_1)
GEMM_Q8(Q8_K)
GEMM_Q8(Q1_0)
GEMM_Q8(Q2_0)
GEMM_Q8(Q2_K)
GEMM_Q8(Q3_K)
GEMM_Q8(TQ1_0)
GEMM_Q8(TQ2_0)
GEMM_Q8(IQ4_NL)
GEMM_Q8(IQ4_XS)
GEMM_Q8(MXFP4)
GEMM_Q8(NVFP4)

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
