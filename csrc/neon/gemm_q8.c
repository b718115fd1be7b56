#include "../ox_dispatch.h"
#include "vocab.h"
#include "../generic/gemm_q8.h"

void ox_neon_gemm_q8(ox_kernels *t) { fill_gemm(t); }
