#include "../ox_dispatch.h"
#include "../avx2/vocab.h"
#include "../generic/gemm_words.h"

void ox_avx_vnni_gemm_words(ox_kernels *t) { fill_gemm(t); }
