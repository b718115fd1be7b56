/* All quantisers but the trivial ones, LANES blocks at a time, and the slots that they fill. */
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed to inlined functions only */
#endif
#include <math.h>
#include "lanes.h"
#include "quantise_blocks.h"
#include "quantise_bytes.h"
#include "quantise_super.h"
#include "quantise_mins.h"

static void fill_quantisers(ox_kernels *t)
{
#define FILL(name) t->quantise[OX_##name] = quantise_##name
    FILL(Q4_0);
    FILL(Q4_1);
    FILL(Q5_0);
    FILL(Q5_1);
    FILL(Q2_K);
    FILL(Q3_K);
    FILL(Q4_K);
    FILL(Q5_K);
    FILL(Q6_K);
    FILL(IQ4_NL);
    FILL(IQ4_XS);
    FILL(TQ1_0);
    FILL(TQ2_0);
    FILL(MXFP4);
    FILL(NVFP4);
    FILL(Q1_0);
    FILL(Q2_0);
#undef FILL
}
