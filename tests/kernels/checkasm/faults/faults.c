/* Faults for the driver to find: linked with --wrap=ox_neon_init, which makes calls of that function calls of this one. */
#include "../check.h"

static const ox_kernels *right(void) { return ox_table(OX_TIER_SCALAR); }

static void add_writing_before(const float *x, float *y, int64_t n)
{
    right()->add(x, y, n);
    y[-1] = 0;
}

static void add_reading_beyond(const float *x, float *y, int64_t n)
{
    right()->add(x, y, n);
    y[0] += 0 * ((const volatile float *)x)[n + 15];
}

static void gemm_by_company(const ox_gemm_args *a)
{
    right()->gemm[OX_F32](a);
    for (int64_t r = 0; r < a->n_rows && a->n_tokens > 2; r++)
        a->y[r] = nextafterf(a->y[r], 1e9f);
}

static void pack_badly(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    right()->pack[OX_Q4_K](src, stride, n_rows, k, panel);
    ((uint8_t *)panel)[70] ^= n_rows > 15;
}

static void attend_to_later_keys(const ox_attn_args *a)
{
    ox_attn_args later = *a;
    later.pos += 1;
    right()->attention(&later);
}

void __real_ox_neon_init(ox_kernels *t);
void __wrap_ox_neon_init(ox_kernels *t);
void __wrap_ox_neon_init(ox_kernels *t)
{
    __real_ox_neon_init(t);
#if FAULT == 0
    t->add = add_writing_before;
#elif FAULT == 1
    t->add = add_reading_beyond;
#elif FAULT == 2
    t->gemm[OX_F32] = gemm_by_company;
#elif FAULT == 3
    t->pack[OX_Q4_K] = pack_badly;
#elif FAULT == 4
    t->attention = attend_to_later_keys;
#elif FAULT == 5
    t->gemm[OX_IQ4_NL] = t->gemm[OX_Q4_0]; /* blocks of the same size, other codes */
#endif
}
