#include "../ox_dispatch.h"
#include <string.h>
#include "vocab.h"
#include "../generic/gemm_grid.h"

void ox_amx_gemm_grid(ox_kernels *t)
{
    memcpy(few, t->gemm, sizeof few);
    fill_gemm(t);
}
