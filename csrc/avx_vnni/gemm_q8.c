#include "../ox_dispatch.h"
#include "../avx2/vocab.h"
#include "../generic/gemm_q8.h"

void ox_avx_vnni_gemm_q8(ox_kernels *t) { fill_gemm(t); }
