/* Matrix products of the float formats, and the slots that they fill. */
#include "q8.h"
#include "float.h"

INLINE vf multiply_add(vf w, vf x, vf acc) { return vf_fma(w, x, acc); }

GEMM_FLOAT(F32, a->k, 64, 0, step_F32, multiply_add)
GEMM_FLOAT(F16, a->k, 32, 0, step_F16, multiply_add)
GEMM_FLOAT(BF16, a->k, 32, 1, step_BF16, multiply_add)

static void fill_gemm(ox_kernels *t)
{
    t->gemm[OX_F32] = gemm_F32;
    t->gemm[OX_F16] = gemm_F16;
    t->gemm[OX_BF16] = gemm_BF16;
}
