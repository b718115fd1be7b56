/* The avx512 tier: the generic bodies over this folder's vocabulary, in files of their own where they take long to
 * compile. */
#include "../ox_dispatch.h"
#include "vocab.h"
#include "../generic/other.h"
#include "gather.h"

void ox_avx512_init(ox_kernels *t)
{
    fill_other(t);
    fill_gather(t);
    ox_avx512_gemm_q8(t);
    ox_avx512_gemm_words(t);
    ox_avx512_gemm_grid(t);
    ox_avx512_gemm_float(t);
    ox_avx512_gemm_rows(t);
    ox_avx512_pack(t);
}
