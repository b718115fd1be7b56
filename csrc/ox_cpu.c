/* Which tier can this machine run? On x86 CPUID says what the CPU has, XGETBV what the operating system saves; on ARM the
 * kernel says it, since the registers that know are its own. */
#include "ox_dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Inline assembly, since _xgetbv() needs -mxsave and this file is compiled for the baseline. */
static uint64_t xgetbv0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

#define BIT(word, n) ((word) >> (n) & 1)

static ox_tier machine_tier(void)
{
    unsigned a, b, c, d, b7, c7, unused;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !BIT(c, 27)) /* OSXSAVE */
        return OX_TIER_SCALAR;
    uint64_t saved = xgetbv0();
    int fma = BIT(c, 12), avx = BIT(c, 28), f16c = BIT(c, 29);
    if ((saved & 0x6) != 0x6 || !fma || !avx || !f16c || !__get_cpuid_count(7, 0, &a, &b7, &c7, &unused) || !BIT(b7, 5))
        return OX_TIER_SCALAR;
    int f = BIT(b7, 16), dq = BIT(b7, 17), bw = BIT(b7, 30), vl = BIT(b7, 31), vnni = BIT(c7, 11);
    if ((saved & 0xe6) != 0xe6 || !f || !dq || !bw || !vl || !vnni)
        return OX_TIER_AVX2;
    return OX_TIER_AVX512;
}

int ox_has_avx512_bf16(void)
{
    unsigned a, b, c, d;
    return machine_tier() == OX_TIER_AVX512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && BIT(a, 5);
}
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

/* NEON itself is part of the base architecture. */
static ox_tier machine_tier(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? OX_TIER_NEON_DOT : OX_TIER_NEON; }
#elif defined(__aarch64__) && defined(__APPLE__)
static ox_tier machine_tier(void) { return OX_TIER_NEON_DOT; } /* every ARM CPU that Apple made computers with has them */
#elif defined(__aarch64__)
static ox_tier machine_tier(void) { return OX_TIER_NEON; }
#else
static ox_tier machine_tier(void) { return OX_TIER_SCALAR; }
#endif

ox_tier ox_detect_tier(void)
{
    int tier = (int)machine_tier();
    while (tier > OX_TIER_SCALAR && !ox_tier_name((ox_tier)tier)) /* those of other machines are not compiled */
        tier--;
    return (ox_tier)tier;
}
