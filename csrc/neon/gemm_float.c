#include "../ox_dispatch.h"
#include "vocab.h"
#include "../generic/gemm_float.h"

void ox_neon_gemm_float(ox_kernels *t) { fill_gemm(t); }
