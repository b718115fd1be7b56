#include "../ox_dispatch.h"
#include "vocab.h"
#include "../generic/gemm_words.h"

void ox_neon_gemm_words(ox_kernels *t) { fill_gemm(t); }
