/* Matrix products of the formats of whole bytes and nibbles, and the K-quants of four bits and more, and the slots
 * that they fill. */
#include "q8.h"

GEMM_Q8(Q4_0, q4_0, 1, OFFSET(4, 3), TOGETHER)
GEMM_Q8(Q4_1, q4_1, 1, MINS(4), ALWAYS)
GEMM_Q8(Q5_0, q5_0, 1, OFFSET(5, 4), TOGETHER)
GEMM_Q8(Q5_1, q5_1, 1, MINS(5), ALWAYS)
GEMM_Q8(Q8_0, q8_0, 1, SIGNED_BYTES, TOGETHER)
GEMM_Q8(Q4_K, q4_k, 8, MINS(4), ALWAYS)
GEMM_Q8(Q5_K, q5_k, 8, MINS(5), ALWAYS)
GEMM_Q8(Q6_K, q6_k, 8, HALVES(6, 5), ONE_TILE)

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
