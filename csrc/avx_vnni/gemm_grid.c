#include "../ox_dispatch.h"
#include "../avx2/vocab.h"
#include "../generic/gemm_grid.h"

void ox_avx_vnni_gemm_grid(ox_kernels *t) { fill_gemm(t); }
