/* The amx tier: the avx512 tier with products on tiles. */
#include "../ox_dispatch.h"

void ox_amx_init(ox_kernels *t)
{
    ox_amx_gemm_q8(t);
    ox_amx_gemm_words(t);
    ox_amx_gemm_grid(t);
    ox_amx_gemm_bf16(t);
}
