#include "../ox_dispatch.h"
#include "../ox_blocks.h"
#include "vocab.h"
#include "pack.h"
#include "../generic/gemm_rows.h"

void ox_avx2_gemm_rows(ox_kernels *t) { fill_gemm_rows(t); }
