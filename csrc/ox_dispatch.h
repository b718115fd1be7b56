/* What each tier's table.c provides; setup.py defines OX_HAVE_<TIER> for the tiers that it compiles. */
#ifndef OX_DISPATCH_H
#define OX_DISPATCH_H
#include "ox_kernels.h"

void ox_scalar_init(ox_kernels *t);
void ox_avx2_init(ox_kernels *t);
void ox_avx512_init(ox_kernels *t);
void ox_neon_init(ox_kernels *t);

#endif
