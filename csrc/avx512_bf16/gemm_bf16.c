/* Not a tier of its own: slots that the avx512 tier gets where the CPU has AVX512_BF16. */
#include "../ox_dispatch.h"
#include "../ox_blocks.h"
#include "vocab.h"
#include "../avx512/pack.h"
#include "../generic/gemm_bf16.h"

void ox_avx512_bf16_init(ox_kernels *t) { fill_bf16(t); }
