#include "../ox_dispatch.h"
#include "vocab.h"
#define PANELS_TOGETHER ox_two_panels
#include "../generic/gemm_q8.h"

void ox_avx512_gemm_q8(ox_kernels *t) { fill_gemm(t); }
