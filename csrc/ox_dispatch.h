/* What each tier's table.c provides; setup.py defines OX_HAVE_<TIER> for the tiers that it compiles. */
#ifndef OX_DISPATCH_H
#define OX_DISPATCH_H
#include "ox_kernels.h"

void ox_scalar_init(ox_kernels *t);
void ox_scalar_quantisers(ox_kernels *t);
void ox_avx2_quantisers(ox_kernels *t);
void ox_avx2_pack(ox_kernels *t);
void ox_avx2_pack_words(ox_kernels *t);
void ox_avx512_pack(ox_kernels *t);
void ox_avx2_gemm_rows(ox_kernels *t);
void ox_avx_vnni_gemm_rows(ox_kernels *t);
void ox_avx512_gemm_rows(ox_kernels *t);
/* Each SIMD tier fills its table from several files, so that they compile side by side. */
#define OX_TIER_PARTS(tier)                     \
    void ox_##tier##_init(ox_kernels *t);        \
    void ox_##tier##_gemm_q8(ox_kernels *t);     \
    void ox_##tier##_gemm_words(ox_kernels *t);  \
    void ox_##tier##_gemm_grid(ox_kernels *t);   \
    void ox_##tier##_gemm_float(ox_kernels *t);
OX_TIER_PARTS(avx2)
OX_TIER_PARTS(avx_vnni)
OX_TIER_PARTS(avx512)
OX_TIER_PARTS(amx)
OX_TIER_PARTS(neon)
OX_TIER_PARTS(neon_dot)
OX_TIER_PARTS(neon_i8mm)

/* What some CPUs of a tier have beyond it: slots that are NULL on the others. */
void ox_avx512_bf16_init(ox_kernels *t);
/* Asks the system for the state of tiles; whether it was given. */
int ox_ask_for_tiles(void);
void ox_amx_gemm_bf16(ox_kernels *t);
int ox_has_avx512_bf16(void);

/* Whether tiles of tokens go through two panels at a time in the avx512 tier: faster on some of its CPUs, slower on
 * others, the same bits on all. Set with the tier's table; only the driver of the tests changes it later. */
extern int ox_two_panels;
int ox_two_panels_pay(void);
/* Whether products of few tokens, too, ask ahead for weights in memory: likewise. */
extern int ox_fetch_for_few;
int ox_fetch_for_few_pays(void);

#endif
