#include "../ox_dispatch.h"
#include "../neon/vocab.h"
#include "../generic/gemm_grid.h"

void ox_neon_i8mm_gemm_grid(ox_kernels *t) { fill_gemm(t); }
