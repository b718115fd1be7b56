/* Matrix products of the formats of whole bytes and nibbles, and the K-quants of four bits and more, and the slots that they fill. */
#include "q8.h"

GEMM_Q8(Q4_0)
GEMM_Q8(Q4_1)
GEMM_Q8(Q5_0)
GEMM_Q8(Q5_1)
GEMM_Q8(Q8_0)
GEMM_Q8(Q4_K)
GEMM_Q8(Q5_K)
GEMM_Q8(Q6_K)

static void fill_gemm(ox_kernels *t)
{
    t->gemm[OX_Q4_0] = gemm_Q4_0;
    t->gemm[OX_Q4_1] = gemm_Q4_1;
    t->gemm[OX_Q5_0] = gemm_Q5_0;
    t->gemm[OX_Q5_1] = gemm_Q5_1;
    t->gemm[OX_Q8_0] = gemm_Q8_0;
    t->gemm[OX_Q4_K] = gemm_Q4_K;
    t->gemm[OX_Q5_K] = gemm_Q5_K;
    t->gemm[OX_Q6_K] = gemm_Q6_K;
}
