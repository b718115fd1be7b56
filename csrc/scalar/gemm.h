/* What the scalar matrix products share: activation rows and the storing of results. */
#ifndef OX_SCALAR_GEMM_H
#define OX_SCALAR_GEMM_H
#include "scalar.h"

#define TOKENS 8 /* tokens that share one unpacking */

typedef struct { const int8_t *q; const float *d, *ds; const int32_t *n, *n0, *n1; } q8_row;

static inline q8_row row_of(const ox_gemm_args *a, int64_t t)
{
    const int8_t *q = (const int8_t *)a->x + (size_t)(a->x_rows ? a->x_rows[t] : t) * a->x_bytes;
    int64_t nb = a->k / 32;
    const float *d = (const float *)(q + a->k);
    const int32_t *n = (const int32_t *)(d + 2 * nb);
    return (q8_row){q, d, d + nb, n, n + nb, n + 2 * nb};
}

static inline void store(const ox_gemm_args *a, int64_t t, int64_t row, const float *acc)
{
    float *y = a->y + (size_t)(a->y_rows ? a->y_rows[t] : t) * a->y_stride + row;
    for (int64_t r = 0; r < 16 && row + r < a->n_rows; r++)
        y[r] = a->accumulate ? y[r] + acc[r] : acc[r];
}

#endif
