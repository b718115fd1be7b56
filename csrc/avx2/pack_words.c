/* The avx2 tier's packing of interleaved words, and of pairs of 16 bits that belong to two columns. AVX-512 takes
 * F16. */
#include "../ox_dispatch.h"
#include "../ox_blocks.h"
#include "vocab.h"
#include "pack.h"
#include "../generic/pack_words.h"

ox_pack_fn ox_pack_F16;

static void pack_F16(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel)
{
    if (n_rows < OX_PANEL || k % 8) {
        ox_pack_F16(src, stride, n_rows, k, panel);
        return;
    }
    __m256i low = _mm256_set1_epi32(0xffff);
    for (int64_t i = 0; i < k; i += 8) {
        const uint8_t *s = (const uint8_t *)src + 2 * i;
        __m256i a[4], b[4];
        four_words(s, stride, a);
        four_words(s + 8 * stride, stride, b);
        for (int v = 0; v < 4; v++) {
            __m256i even = _mm256_packus_epi32(_mm256_and_si256(a[v], low), _mm256_and_si256(b[v], low));
            __m256i odd = _mm256_packus_epi32(_mm256_srli_epi32(a[v], 16), _mm256_srli_epi32(b[v], 16));
            uint8_t *dst = (uint8_t *)panel + 32 * (i + 2 * v);
            store(dst, _mm256_permute4x64_epi64(even, 0xd8));
            store(dst + 32, _mm256_permute4x64_epi64(odd, 0xd8));
        }
    }
}

void ox_avx2_pack_words(ox_kernels *t)
{
    fill_pack_words(t);
    t->pack[OX_F16] = pack_F16;
}
