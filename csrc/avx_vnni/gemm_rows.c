#include "../ox_dispatch.h"
#include "../ox_blocks.h"
#include "../avx2/vocab.h"
#include "../avx2/pack.h"
#include "../generic/gemm_rows.h"

void ox_avx_vnni_gemm_rows(ox_kernels *t) { fill_gemm_rows(t); }
