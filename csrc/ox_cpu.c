/* Which tiers can this machine run? On x86 CPUID says what the CPU has, XGETBV what the operating system saves; on
 * ARM the kernel says it, since the registers that know are its own. */
#define _DEFAULT_SOURCE /* syscall */
#include "ox_dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Inline assembly, since _xgetbv() needs -mxsave and this file is compiled for the baseline. */
static uint64_t xgetbv0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

#define BIT(word, n) ((word) >> (n) & 1)

/* Word `which` (0: EAX to 3: EDX) of leaf 7, or 0 where the CPU has no such leaf. */
static unsigned features(unsigned part, int which)
{
    unsigned r[4] = {0, 0, 0, 0};
    return __get_cpuid_count(7, part, &r[0], &r[1], &r[2], &r[3]) ? r[which] : 0;
}

static int runs_avx2(uint64_t saved, unsigned c)
{
    /* FMA, AVX, F16C */
    return (saved & 0x6) == 0x6 && BIT(c, 12) && BIT(c, 28) && BIT(c, 29) && BIT(features(0, 1), 5);
}

/* Linux gives the tiles' 8 kB of state to processes that ask for it, once for all of their threads. It refuses where a
 * thread has a stack for signals that is too small to hold them, or a sandbox stops the call. A process that has the
 * state can't make such stacks any more, and so it is asked for only when the tier is to be used. */
enum { GET_SUPPORTED = 0x1021, REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_GET_XCOMP_SUPP, ARCH_REQ_XCOMP_PERM */
static int tiles_refused;

static int system_has_tiles(void)
{
    uint64_t supported = 0;
#if defined(__linux__) && defined(SYS_arch_prctl)
    if (syscall(SYS_arch_prctl, GET_SUPPORTED, &supported))
        supported = 0;
#endif
    return !tiles_refused && BIT(supported, TILE_DATA);
}

int ox_ask_for_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    tiles_refused = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) != 0;
    return !tiles_refused;
#else
    return 0;
#endif
}

static int machine_runs(ox_tier tier)
{
    unsigned a, b, c, d, b7 = features(0, 1), d7 = features(0, 3);
    if (tier == OX_TIER_SCALAR)
        return 1;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !BIT(c, 27)) /* OSXSAVE */
        return 0;
    uint64_t saved = xgetbv0();
    int avx512 = BIT(b7, 16) && BIT(b7, 17) && BIT(b7, 30) && BIT(b7, 31); /* F, DQ, BW, VL */
    switch (tier) {
    case OX_TIER_AVX2: return runs_avx2(saved, c);
    case OX_TIER_AVX_VNNI: return runs_avx2(saved, c) && BIT(features(1, 0), 4);
    case OX_TIER_AVX512: return runs_avx2(saved, c) && (saved & 0xe6) == 0xe6 && avx512 && BIT(features(0, 2), 11);
    case OX_TIER_AMX: /* AMX_BF16, AMX_TILE, AMX_INT8, and rows that are rounded by AVX512_BF16 */
        return machine_runs(OX_TIER_AVX512) && BIT(features(1, 0), 5) && BIT(d7, 22) && BIT(d7, 24) && BIT(d7, 25)
               && (saved & 0x60000) == 0x60000 && system_has_tiles();
    default: return 0;
    }
}

static int made_by(unsigned ebx)
{
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == ebx;
}

/* Whether the avx512 tier has dot products of bfloat16, which have bits of their own. Not on Intel's cores, where
 * floats cost no more: without tiles, 512 tokens of a BF16 model take 0.76 of the time with them, one token 0.99 (Emerald
 * Rapids). AMD's were not measured. */
int ox_has_avx512_bf16(void)
{
    return machine_runs(OX_TIER_AVX512) && BIT(features(1, 0), 5) && !made_by(signature_INTEL_ebx);
}

/* Intel's cores for servers: what the hardware asks for by itself reaches 20 lines ahead, and never into the next page,
 * too little for their memory's latency. From memory, one token runs at 1.2 (Q8_0), 1.4 to 1.6 (Q4_0), 1.6 (Q5_K, Q6_K)
 * and 1.7 times (Q4_K, IQ4_XS) the speed on one core of Emerald Rapids, with AVX2 and AVX-VNNI at 1.4 to 1.7; from the
 * third-level cache at 1.0 to 1.15, from the second at 0.97 (Q8_0 0.85), so that small models go without. On Zen 4 a
 * token takes 1.1 to 1.4 times as long. Cores before Sapphire Rapids, whose hardware asks by the same rules, and more than
 * two at a time were not measured, nor those without AVX-512, which go without. */
int ox_fetch_for_few_pays(void) { return made_by(signature_INTEL_ebx) && machine_runs(OX_TIER_AVX512); }

/* AMD's family 1Ah, Zen 5, multiplies and adds two vectors of 512 bits in a cycle and loads as many, so that loads take
 * longer than the products of one panel; so do Intel's cores for servers since Sapphire Rapids, which AMX tells: 64
 * tokens on Emerald Rapids ran at 1.22 (Q8_0), 1.13 (Q4_0) and 1.05 times (Q5_0) the speed. Zen 4, family 19h,
 * multiplies one, and took 1.02 to 1.1 times as long with two panels. Others were not measured. */
int ox_two_panels_pay(void)
{
    unsigned a, b, c, d;
    if (made_by(signature_INTEL_ebx))
        return BIT(features(0, 3), 24);
    if (!made_by(signature_AMD_ebx) || !__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    return ((a >> 8 & 15) == 15 ? 15 + (a >> 20 & 255) : a >> 8 & 15) >= 0x1a;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#ifndef HWCAP2_I8MM /* headers before Linux 5.10 */
#define HWCAP2_I8MM (1 << 13)
#endif

/* NEON itself is part of the base architecture. */
static int machine_runs(ox_tier tier)
{
    switch (tier) {
    case OX_TIER_SCALAR:
    case OX_TIER_NEON: return 1;
    case OX_TIER_NEON_DOT: return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    case OX_TIER_NEON_I8MM: return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
    default: return 0;
    }
}
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

/* Every ARM CPU that Apple made computers with has dot products; matrix products came with the M2. */
static int machine_runs(ox_tier tier)
{
    int has = 0;
    size_t size = sizeof has;
    if (tier != OX_TIER_NEON_I8MM)
        return tier == OX_TIER_SCALAR || tier == OX_TIER_NEON || tier == OX_TIER_NEON_DOT;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, NULL, 0) == 0 && has;
}
#elif defined(__aarch64__)
static int machine_runs(ox_tier tier) { return tier == OX_TIER_SCALAR || tier == OX_TIER_NEON; }
#else
static int machine_runs(ox_tier tier) { return tier == OX_TIER_SCALAR; }
#endif

#if !defined(__x86_64__)
int ox_fetch_for_few_pays(void) { return 0; }
#endif

/* Tiers of other machines are not compiled, and have no name. */
int ox_runs(ox_tier tier) { return ox_tier_name(tier) && machine_runs(tier); }

ox_tier ox_detect_tier(void)
{
    int tier = (int)OX_N_TIERS - 1;
    while (!ox_runs((ox_tier)tier) || !ox_table((ox_tier)tier))
        tier--;
    return (ox_tier)tier;
}
