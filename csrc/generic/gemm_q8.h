/* Matrix products of the formats of whole bytes and nibbles, and the K-quants of four bits and more, and the slots
 * that they fill. */
#include "q8.h"

FORM_Q8(offset_4, OFFSET(4, 3))
FORM_Q8(mins_4, MINS(4))
FORM_Q8(offset_5, OFFSET(5, 4))
FORM_Q8(mins_5, MINS(5))
FORM_Q8(signed_bytes, SIGNED_BYTES)
FORM_Q8(halves_6, HALVES(6, 5))

GEMM_Q8(Q4_0, q4_0, 1, offset_4, TOGETHER)
GEMM_Q8(Q4_1, q4_1, 1, mins_4, ALWAYS)
GEMM_Q8(Q5_0, q5_0, 1, offset_5, TOGETHER)
GEMM_Q8(Q5_1, q5_1, 1, mins_5, ONE_TILE)
GEMM_Q8(Q8_0, q8_0, 1, signed_bytes, TOGETHER)
GEMM_Q8(Q4_K, q4_k, 8, mins_4, ALWAYS)
GEMM_Q8(Q5_K, q5_k, 8, mins_5, ONE_TILE)
GEMM_Q8(Q6_K, q6_k, 8, halves_6, ONE_TILE)

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
