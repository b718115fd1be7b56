/* Matrix products of the formats whose codes are points of a grid, and the slots that they fill. */
#define UNPACKING_IS_SLOW 1
#include "q8.h"
#include "q8_words.h"
#include "q8_grid.h"

FORM_Q8(offset_7, OFFSET(7, 6))
FORM_Q8(halves_7, HALVES(7, 6))
FORM_Q8(offset_5, OFFSET(5, 4))
FORM_Q8(halves_5, HALVES(5, 4))

GEMM_Q8(IQ2_XXS, iq2_xxs, 8, offset_7, NEVER)
GEMM_Q8(IQ2_XS, iq2_xs, 8, halves_7, NEVER)
GEMM_Q8(IQ2_S, iq2_s, 8, halves_7, NEVER)
GEMM_Q8(IQ3_XXS, iq3_xxs, 8, offset_7, NEVER)
GEMM_Q8(IQ3_S, iq3_s, 8, offset_5, NEVER)
GEMM_Q8(IQ1_S, iq1_s, 8, offset_5, NEVER)
GEMM_Q8(IQ1_M, iq1_m, 8, halves_5, NEVER)

static void fill_gemm(ox_kernels *t)
{
    t->gemm[OX_IQ2_XXS] = gemm_IQ2_XXS;
    t->gemm[OX_IQ2_XS] = gemm_IQ2_XS;
    t->gemm[OX_IQ2_S] = gemm_IQ2_S;
    t->gemm[OX_IQ3_XXS] = gemm_IQ3_XXS;
    t->gemm[OX_IQ3_S] = gemm_IQ3_S;
    t->gemm[OX_IQ1_S] = gemm_IQ1_S;
    t->gemm[OX_IQ1_M] = gemm_IQ1_M;
}
