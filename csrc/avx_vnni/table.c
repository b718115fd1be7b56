/* The avx2 tier's integer products once more, for CPUs that multiply and add four bytes in one instruction and have no
 * AVX-512: three times fewer instructions, and none that saturates. Everything else is that tier's. */
#include "../ox_dispatch.h"

void ox_avx_vnni_init(ox_kernels *t)
{
    ox_avx_vnni_gemm_q8(t);
    ox_avx_vnni_gemm_words(t);
    ox_avx_vnni_gemm_grid(t);
    ox_avx_vnni_gemm_rows(t);
}
