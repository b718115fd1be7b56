/* Keys from lanes of several panels to one, a word of all 16 at a time: lanes that come from one panel are one
 * permutation of it. Lane by lane, putting the keys together took longer than 16 heads' attention over them. */

typedef struct { const uint8_t *src[16]; __m512i words[16]; __m256i halves[16]; __mmask16 mask[16]; } lane_runs;

/* Runs of lanes from the same panel: their number. */
static int find_runs(const void *const *panels, const int32_t *lanes, lane_runs *r)
{
    __m512i words = _mm512_loadu_si512(lanes);
    int n = 0;
    for (int lane = 0; lane < 16; lane++) {
        if (!lane || panels[lane] != panels[lane - 1]) {
            r->src[n] = panels[lane];
            r->mask[n++] = 0;
        }
        r->mask[n - 1] = (__mmask16)(r->mask[n - 1] | 1u << lane);
    }
    for (int i = 0; i < n; i++) {
        r->words[i] = words;
        r->halves[i] = _mm512_cvtepi32_epi16(words);
    }
    return n;
}

INLINE void gather_words(const lane_runs *r, const int n, size_t first, int64_t count, uint8_t *dst)
{
    for (size_t at = first; at < first + (size_t)count * 64; at += 64) {
        __m512i x = _mm512_setzero_si512();
        for (int i = 0; i < n; i++) {
            __m512i words = _mm512_loadu_si512(r->src[i] + at);
            x = _mm512_or_si512(x, _mm512_maskz_permutexvar_epi32(r->mask[i], r->words[i], words));
        }
        _mm512_storeu_si512(dst + at, x);
    }
}

INLINE void gather_halves(const lane_runs *r, const int n, size_t first, int64_t count, uint8_t *dst)
{
    for (size_t at = first; at < first + (size_t)count * 32; at += 32) {
        __m256i x = _mm256_setzero_si256();
        for (int i = 0; i < n; i++) {
            __m256i row = _mm256_loadu_si256((const __m256i *)(r->src[i] + at));
            x = _mm256_or_si256(x, _mm256_maskz_permutexvar_epi16(r->mask[i], r->halves[i], row));
        }
        _mm256_storeu_si256((__m256i *)(dst + at), x);
    }
}

/* `words` rows of 16 words, then `halves` rows of 16 halves. */
static void gather_rows_of_16(const void *const *panels, const int32_t *lanes, int64_t words, int64_t halves,
                              void *panel)
{
    lane_runs r;
    int n = find_runs(panels, lanes, &r);
#define RUNS(n) gather_words(&r, n, 0, words, panel); gather_halves(&r, n, (size_t)words * 64, halves, panel)
    switch (n) {
    case 1: RUNS(1); break;
    case 2: RUNS(2); break;
    case 3: RUNS(3); break;
    case 4: RUNS(4); break;
    default: RUNS(n);
    }
#undef RUNS
}

#include "../generic/gather.h"
