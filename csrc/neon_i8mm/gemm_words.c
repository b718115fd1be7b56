#include "../ox_dispatch.h"
#include "../neon/vocab.h"
#include "../generic/gemm_words.h"

void ox_neon_i8mm_gemm_words(ox_kernels *t) { fill_gemm(t); }
