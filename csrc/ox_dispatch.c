/* Formats and tiers as tables. Each tier starts as a copy of the one below it and overwrites what it improves. */
#include "ox_dispatch.h"

const ox_format_info ox_formats[] = {
#define OX_KERNEL_FORMAT(name, id, values, bytes, pvalues, pbytes) \
    {#name, id, values, bytes, pvalues, pbytes, OX_##name},
#define OX_NAMED_FORMAT(name, id, values, bytes) {#name, id, values, bytes, 0, 0, -1},
#include "ox_formats.def"
};
const int ox_n_formats = (int)(sizeof ox_formats / sizeof *ox_formats);

/* The amx tier is one more part over these two. */
#if defined(OX_HAVE_AMX) && defined(OX_HAVE_AVX512) && defined(OX_HAVE_AVX512_BF16)
#define HAVE_AMX
#endif

/* Of the tiers in this build; NULL for the others. Not ox_table() says which those are: it runs code of the tier, which
 * may need instructions that this machine lacks. */
static const char *const names[OX_N_TIERS] = {
    [OX_TIER_SCALAR] = "scalar",
#ifdef OX_HAVE_AVX2
    [OX_TIER_AVX2] = "avx2",
#endif
#ifdef OX_HAVE_AVX_VNNI
    [OX_TIER_AVX_VNNI] = "avx_vnni",
#endif
#ifdef OX_HAVE_AVX512
    [OX_TIER_AVX512] = "avx512",
#endif
#ifdef HAVE_AMX
    [OX_TIER_AMX] = "amx",
#endif
#ifdef OX_HAVE_NEON
    [OX_TIER_NEON] = "neon",
#endif
#ifdef OX_HAVE_NEON_DOT
    [OX_TIER_NEON_DOT] = "neon_dot",
#endif
#ifdef OX_HAVE_NEON_I8MM
    [OX_TIER_NEON_I8MM] = "neon_i8mm",
#endif
};
const char *ox_tier_name(ox_tier tier) { return names[tier]; }

#if defined(__clang__)
const char *ox_compiler(void) { return "clang " __clang_version__; }
#else
const char *ox_compiler(void) { return "gcc " __VERSION__; }
#endif

static ox_kernels tables[OX_N_TIERS];
int ox_two_panels, ox_fetch_for_few;

/* Called with Python's import lock held, so that no second thread can see a half-built table. */
const ox_kernels *ox_table(ox_tier tier)
{
    ox_kernels *t = &tables[tier];
    if (t->name)
        return t;
#ifdef HAVE_AMX
    if (tier == OX_TIER_AMX && !ox_ask_for_tiles())
        return NULL;
#endif
    ox_fetch_for_few = ox_fetch_for_few_pays();
    ox_scalar_init(t);
    switch (tier) {
#ifdef OX_HAVE_AVX512
#ifdef HAVE_AMX
    case OX_TIER_AMX:
#endif
    case OX_TIER_AVX512:
        ox_avx2_init(t);
        ox_avx512_init(t);
        ox_two_panels = ox_two_panels_pay();
#ifdef OX_HAVE_AVX512_BF16
        if (ox_has_avx512_bf16() || tier == OX_TIER_AMX) /* whose rows are rounded by it */
            ox_avx512_bf16_init(t);
#endif
#ifdef HAVE_AMX
        if (tier == OX_TIER_AMX)
            ox_amx_init(t);
#endif
        break;
#endif
#ifdef OX_HAVE_AVX_VNNI
    case OX_TIER_AVX_VNNI: ox_avx2_init(t); ox_avx_vnni_init(t); break;
#endif
#ifdef OX_HAVE_AVX2
    case OX_TIER_AVX2: ox_avx2_init(t); break;
#endif
#ifdef OX_HAVE_NEON_I8MM
    case OX_TIER_NEON_I8MM: ox_neon_init(t); ox_neon_i8mm_init(t); break;
#endif
#ifdef OX_HAVE_NEON_DOT
    case OX_TIER_NEON_DOT: ox_neon_init(t); ox_neon_dot_init(t); break;
#endif
#ifdef OX_HAVE_NEON
    case OX_TIER_NEON: ox_neon_init(t); break;
#endif
    case OX_TIER_SCALAR: break;
    default: return NULL;
    }
    t->name = names[tier];
    return t;
}
