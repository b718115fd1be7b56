/* The neon tier's integer products once more, compiled for CPUs that have the dot product instructions: four times
 * fewer instructions for four products. Everything else is that tier's. */
#include "../ox_dispatch.h"

void ox_neon_dot_init(ox_kernels *t)
{
    ox_neon_dot_gemm_q8(t);
    ox_neon_dot_gemm_words(t);
    ox_neon_dot_gemm_grid(t);
}
