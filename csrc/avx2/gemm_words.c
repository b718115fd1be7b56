#include "../ox_dispatch.h"
#include "vocab.h"
#include "../generic/gemm_words.h"

void ox_avx2_gemm_words(ox_kernels *t) { fill_gemm(t); }
