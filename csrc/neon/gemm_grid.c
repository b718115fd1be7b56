#include "../ox_dispatch.h"
#include "vocab.h"
#include "../generic/gemm_grid.h"

void ox_neon_gemm_grid(ox_kernels *t) { fill_gemm(t); }
