/* Keys from lanes of several panels to one, a word of all 16 at a time: lanes that come from one panel are one
 * permutation of it, of halves of 8 lanes. Lane by lane, putting the keys together took longer than 16 heads' attention
 * over them. */

/* Of each panel: which of its first and last 8 lanes go to each of 16; none of them is a zero. */
typedef struct {
    const uint8_t *src[16];
    __m256i places[2];           /* words: of a lane, within 8, for lanes 0-7 and 8-15 */
    __m256i words[16][2][2];     /* masks of lanes [8 of them] that come from [first or last 8] */
    __m256i halves[16][2];       /* bytes within 16 for all lanes, from [first or last 8], or 0x80 */
} lane_runs;

/* Runs of lanes from the same panel: their number. */
static int find_runs(const void *const *panels, const int32_t *lanes, lane_runs *r)
{
    int32_t words[16][2][16] = {0};
    uint8_t halves[16][2][32];
    int32_t places[16];
    int n = 0;
    memset(halves, 0x80, sizeof halves);
    for (int lane = 0; lane < 16; lane++) {
        if (!lane || panels[lane] != panels[lane - 1])
            r->src[n++] = panels[lane];
        int last = lanes[lane] / 8;
        places[lane] = lanes[lane] % 8;
        words[n - 1][last][lane] = -1;
        halves[n - 1][last][2 * lane] = (uint8_t)(2 * places[lane]);
        halves[n - 1][last][2 * lane + 1] = (uint8_t)(2 * places[lane] + 1);
    }
    for (int i = 0; i < 2; i++)
        r->places[i] = _mm256_loadu_si256((const __m256i *)(places + 8 * i));
    for (int i = 0; i < n; i++)
        for (int last = 0; last < 2; last++) {
            r->halves[i][last] = _mm256_loadu_si256((const __m256i *)halves[i][last]);
            for (int j = 0; j < 2; j++)
                r->words[i][j][last] = _mm256_loadu_si256((const __m256i *)(words[i][last] + 8 * j));
        }
    return n;
}

static void gather_words(const lane_runs *r, int n, size_t end, uint8_t *dst)
{
    for (size_t at = 0; at < end; at += 64) {
        __m256i x[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int i = 0; i < n; i++)
            for (int last = 0; last < 2; last++) {
                __m256i row = _mm256_loadu_si256((const __m256i *)(r->src[i] + at + 32 * last));
                for (int j = 0; j < 2; j++)
                    x[j] = _mm256_or_si256(x[j], _mm256_and_si256(_mm256_permutevar8x32_epi32(row, r->places[j]),
                                                                  r->words[i][j][last]));
            }
        _mm256_storeu_si256((__m256i *)(dst + at), x[0]);
        _mm256_storeu_si256((__m256i *)(dst + at + 32), x[1]);
    }
}

static void gather_halves(const lane_runs *r, int n, size_t first, size_t end, uint8_t *dst)
{
    for (size_t at = first; at < end; at += 32) {
        __m256i x = _mm256_setzero_si256();
        for (int i = 0; i < n; i++)
            for (int last = 0; last < 2; last++) {
                __m128i row = _mm_loadu_si128((const __m128i *)(r->src[i] + at + 16 * last));
                x = _mm256_or_si256(x, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(row), r->halves[i][last]));
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
    gather_words(&r, n, (size_t)words * 64, panel);
    gather_halves(&r, n, (size_t)words * 64, (size_t)(words * 64 + halves * 32), panel);
}

#include "../generic/gather.h"
