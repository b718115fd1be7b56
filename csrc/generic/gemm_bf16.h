/* Matrix products of bfloat16 weights with activations rounded to bfloat16, for tiers that multiply pairs of them in
 * one instruction: the vocabulary has vf_dot_bf16 and vf_to_bf16. A step is a pair of columns. Rows of an odd number
 * of values are padded with a zero, as are panels. */
#include "q8.h"
#include "float.h"
#include "rows_float.h"

GEMM_FLOAT(pairs, (a->k + 1) / 2, 64, 0, step_F32, vf_dot_bf16)

GEMM_ROWS_FLOAT(pairs, turn_words, column_words, vf_dot_bf16, VL, 2, 2)

static void round_bf16(const float *x, void *rounded_row, int64_t k)
{
    uint16_t *row = rounded_row;
    for (; k >= VL; k -= VL, x += VL, row += VL)
        vf_to_bf16(row, vf_load(x));
    if (k > 0) {
        float part[VL] = {0};
        uint16_t rounded[VL];
        memcpy(part, x, (size_t)k * sizeof *x);
        vf_to_bf16(rounded, vf_load(part));
        memcpy(row, rounded, (size_t)((k + 1) / 2) * 4);
    }
}

static void fill_bf16(ox_kernels *t)
{
    t->round_bf16 = round_bf16;
    t->gemm_bf16 = gemm_pairs;
    t->gemm_bf16_rows = gemm_rows_pairs;
}
