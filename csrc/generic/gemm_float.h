/* Matrix products of the float formats, and the slots that they fill. */
#include "q8.h"
#include "float.h"

GEMM_FLOAT(F32)
GEMM_FLOAT(F16)
GEMM_FLOAT(BF16)

static void fill_gemm(ox_kernels *t)
{
    t->gemm[OX_F32] = gemm_F32;
    t->gemm[OX_F16] = gemm_F16;
    t->gemm[OX_BF16] = gemm_BF16;
}
