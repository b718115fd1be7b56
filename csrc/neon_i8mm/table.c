/* The neon_dot tier's integer products once more, for CPUs that multiply matrices of 2 x 8 bytes: more than a tile of
 * tokens go through those, twice the products of an instruction. Everything else is the neon tier's. */
#include "../ox_dispatch.h"

void ox_neon_i8mm_init(ox_kernels *t)
{
    ox_neon_i8mm_gemm_q8(t);
    ox_neon_i8mm_gemm_words(t);
    ox_neon_i8mm_gemm_grid(t);
}
