/* Products of the float formats' rows as files store them, and the slots that they fill; after gemm_float.h and the
 * tier's pack.h. */
#include "rows_float.h"

GEMM_ROWS_FLOAT(F32, turn_words, column_words, multiply_add, VL, 4, 1)
GEMM_ROWS_FLOAT(F16, turn_halves, column_halves, multiply_add, 2 * VL, 2, 1)
GEMM_ROWS_FLOAT(BF16, turn_words, column_BF16, multiply_add, 2 * VL, 2, 1)

static void fill_gemm_rows(ox_kernels *t)
{
    t->gemm_rows[OX_F32] = gemm_rows_F32;
    t->gemm_rows[OX_F16] = gemm_rows_F16;
    t->gemm_rows[OX_BF16] = gemm_rows_BF16;
}
