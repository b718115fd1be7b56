#include "../ox_dispatch.h"
#include "../neon/vocab.h"
#include "../generic/gemm_q8.h"

void ox_neon_i8mm_gemm_q8(ox_kernels *t) { fill_gemm(t); }
