/* Matrix products of the formats whose codes are points of a grid, and the slots that they fill. */
#include "q8.h"
#include "q8_words.h"
#include "q8_grid.h"

GEMM_GRID(IQ2_XXS, add_group_6)
GEMM_GRID(IQ2_XS, add_group_halves_6)
GEMM_GRID(IQ2_S, add_group_halves_6)
GEMM_GRID(IQ3_XXS, add_group_6)
GEMM_GRID(IQ3_S, add_group_4)
GEMM_GRID(IQ1_S, add_group_4)
GEMM_GRID(IQ1_M, add_group_halves_4)

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
