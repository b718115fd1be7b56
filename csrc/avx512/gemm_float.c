#include "../ox_dispatch.h"
#include "../ox_blocks.h"
#include "vocab.h"
#include "pack.h"
#include "../generic/gemm_float.h"
#include "../generic/gemm_rows_float.h"

void ox_avx512_gemm_float(ox_kernels *t)
{
    fill_gemm(t);
    fill_gemm_rows(t);
}
