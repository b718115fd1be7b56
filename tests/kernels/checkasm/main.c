/* Compares every slot of every tier that this machine can run with the scalar one, on odd sizes, odd addresses and
 * guarded buffers of the exact size. Plain C, so that it also runs under an emulator or with sanitisers.
 *
 * checkasm [TIER [N]]: all, or those from TIER up, or N of them. Prints the tiers it tested, each with the digest of what is right; ends
 * with 1, and says where, at the first difference, crash or untested slot. */
#define _DEFAULT_SOURCE
#include "check.h"
#include "../../../csrc/ox_dispatch.h"
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *tier_name;
static char activity[200];

void doing(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(activity, sizeof activity, format, args);
    va_end(args);
}

static void report(const char *what)
{
    fflush(stdout);
    fprintf(stderr, "%s: %s: %s\n", tier_name, activity, what);
}

void expect(int holds, const char *format, ...)
{
    if (holds)
        return;
    char what[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    report(what);
    exit(1);
}

static void crashed(int signal)
{
    report(signal == SIGILL ? "an instruction that this machine lacks" : "touched memory that isn't its own");
    _exit(1);
}

/* FNV-1a of what the scalar tier gave, a NaN being NaN. Inputs are drawn anew for each tier, so that a tier's digest is
 * the same whatever compiler made the driver, and the scalar one's is on every machine. */
static uint64_t digest;

static void take(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ ((const uint8_t *)p)[i]) * 1099511628211u;
}

static void take_floats(const float *x, int64_t n)
{
    static const float any_nan = NAN;
    for (int64_t i = 0; i < n; i++)
        take(isnan(x[i]) ? &any_nan : x + i, 4);
}

void expect_same(const float *a, const float *b, int64_t n)
{
    take_floats(a, n);
    for (int64_t i = 0; i < n; i++)
        expect(memcmp(a + i, b + i, 4) == 0 || (isnan(a[i]) && isnan(b[i])), "value %d is %.9g, expected %.9g: other bits",
               (int)i, b[i], a[i]);
}

void expect_near(const float *a, const float *b, int64_t n, double bound)
{
    for (int64_t i = 0; i < n; i++)
        expect(fabs((double)a[i] - b[i]) <= bound || (isnan(a[i]) && isnan(b[i])), "value %d is %.9g, expected %.9g (+-%g)",
               (int)i, b[i], a[i], bound);
}

void expect_equal(const void *a, const void *b, size_t bytes)
{
    take(a, bytes);
    for (size_t i = 0; i < bytes; i++)
        expect(((const uint8_t *)a)[i] == ((const uint8_t *)b)[i], "byte %zu of %zu differs", i, bytes);
}

/* xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016) */
static uint64_t state;

uint64_t random_bits(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717u >> 16;
}

float random_float(void) { return (float)(random_bits() & 0xffffff) * 0x1p-23f - 1; }

void fill_floats(float *x, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * random_float();
}

void fill_specials(float *x, int64_t n)
{
    static const float special[] = {0, -0.0f, 1e-45f, -1e-45f, 1.1e-38f, -1e-39f, 1.2e-38f, 3.4e38f, -3.4e38f, 1e-30f, 88, -88, -87.3f,
                                    INFINITY, -INFINITY, NAN, 1, -1, 0.625f, -0.5f, 1e18f, -1e19f};
    uint64_t every = 1 + random_bits() % 40;
    int usual = (int)(random_bits() % 3); /* neither infinities nor NaN in two of three, which leave little to compare */
    for (int64_t i = 0; i < n; i++) {
        float y = special[random_bits() % COUNT(special)];
        x[i] = random_bits() % every || (usual && !isfinite(y)) ? 8 * random_float() : y;
    }
}

#define CANARY 0xff /* NaN in every float type */
typedef struct { uint8_t *map, *p; size_t bytes, n; } buffer;
static buffer live[512];
static int n_live;

void *place(size_t n, size_t align)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (n + 192 + page - 1) / page * page;
    uint8_t *map = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(map != MAP_FAILED && mprotect(map + bytes, page, PROT_NONE) == 0 && n_live < COUNT(live), "no memory for %zu bytes", n);
    size_t slack = random_bits() % 2 ? random_bits() % 64 : 0;
    uint8_t *p = map + (bytes - n - slack) / align * align; /* pages are aligned to more */
    memset(map, CANARY, bytes);
    live[n_live++] = (buffer){map, p, bytes, n};
    return p;
}

void seal(const void *p)
{
    for (int i = 0; i < n_live; i++)
        if (live[i].p == p)
            expect(mprotect(live[i].map, live[i].bytes, PROT_READ) == 0, "no protection");
}

const void *copy(const void *src, size_t n, size_t align)
{
    void *p = memcpy(place(n, align), src, n);
    seal(p);
    return p;
}

void release(void)
{
    for (size_t page = (size_t)sysconf(_SC_PAGESIZE); n_live > 0;) {
        buffer b = live[--n_live];
        for (uint8_t *p = b.map; p < b.map + b.bytes; p++)
            expect(*p == CANARY || (p >= b.p && p < b.p + b.n), "wrote %td bytes from the start of %zu", p - b.p, b.n);
        munmap(b.map, b.bytes + page);
    }
}

static uint8_t tested[sizeof(ox_kernels)];
void note_slot(size_t offset) { tested[offset] = 1; }

/* A table is a name and then pointers to functions: those that are no null pointers must have been called. */
static void expect_all_tested(const ox_kernels *t)
{
    size_t first = sizeof t->name, size = sizeof t->quantise_q8;
    doing("every slot");
    for (size_t at = first; at < sizeof *t; at += size) {
        static const char null[sizeof t->quantise_q8];
        expect(tested[at] || memcmp((const char *)t + at, null, size) == 0,
               "pointer %zu of ox_kernels is tested by nothing in tests/kernels/checkasm", (at - first) / size);
    }
}

#pragma weak ox_avx512_bf16_init /* a build may have the scalar tier alone */

/* Products of bfloat16 that the avx512 tier leaves out where others are as fast. */
static void check_bf16_dots(const ox_kernels *scalar, const ox_kernels *t)
{
#ifdef __x86_64__
    if (t->gemm_bf16 || !ox_avx512_bf16_init || !__builtin_cpu_supports("avx512bf16"))
        return;
    ox_kernels with_dots = *t;
    memset(with_dots.gemm_rows, 0, sizeof with_dots.gemm_rows); /* those were tested */
    ox_avx512_bf16_init(&with_dots);
    check_products_of(scalar, &with_dots, OX_BF16);
#else
    (void)scalar, (void)t;
#endif
}

int main(int n_args, char **args)
{
    const ox_kernels *scalar = ox_table(OX_TIER_SCALAR);
    int started = n_args < 2, n = n_args < 3 ? OX_N_TIERS : atoi(args[2]);
    signal(SIGSEGV, crashed);
    signal(SIGBUS, crashed);
    signal(SIGILL, crashed);
    for (int tier = 0; tier < OX_N_TIERS; tier++) {
        if (!ox_runs((ox_tier)tier))
            continue;
        const ox_kernels *t = ox_table((ox_tier)tier);
        if (!t)
            continue;
        started = started || strcmp(args[1], t->name) == 0;
        if (!started || n == 0)
            continue;
        n--;
        tier_name = t->name;
        memset(tested, 0, sizeof tested);
        state = 88172645463325252u;
        digest = 14695981039346656037u;
        check_rows(scalar, t);
        check_formats(scalar, t);
        check_attention(scalar, t);
        check_choice(scalar, t);
        check_recurrent(scalar, t);
        check_products(scalar, t, INT64_MAX);
        ox_fetch_for_few = !ox_fetch_for_few; /* as this machine's products of few tokens don't go */
        check_products(scalar, t, 3); /* FETCH_FROM - 1 */
        if (tier == OX_TIER_AVX512) {
            ox_two_panels = !ox_two_panels;
            check_products(scalar, t, INT64_MAX);
            check_bf16_dots(scalar, t);
        }
        expect_all_tested(t);
        printf("%s %016llx\n", t->name, (unsigned long long)digest);
    }
    return 0;
}
