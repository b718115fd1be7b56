/* What AMX adds to the vocabulary of avx512: eight tiles of up to 16 rows of 64 bytes, named by constants.
 *
 * In assembler, since compilers' own functions are not to be trusted: gcc before 12.4 and 13.3 takes a configuration
 * for eight bytes and drops what is stored behind them, and none of its versions knows that a tile is loaded from
 * memory. */
#include "../avx512/vocab.h"
#undef TILE_PANELS

#define HAVE_TILES
#define TILE 16      /* rows of a tile */
/* Tokens from which on a form of scales goes through tiles. Those of halves take longer to bring into codes; with float
 * ones, two products for each chunk were as slow as without tiles. Of narrow matrices, or few tokens and columns, a call
 * has too little to do: 0.8 to 0.95 of the speed of Q8_0 in the tier below. */
#define TILES_COLUMNS 512
#define TILES_LEAST (16 * 1024) /* tokens times columns */
#define TILES_FROM(form)                                                       \
    ((form).add == ADD_FLOAT_HALVES                                            \
         ? INT64_MAX                                                           \
         : (form).add == ADD_HALVES || (form).add == ADD_HALVES_MINS ? 48 : 16)

/* Rows of a tile, and bytes of each: none for those that are not used. */
typedef struct { uint8_t palette, first_row, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } tile_shapes;

V void tiles_begin(const tile_shapes *s) { __asm__ volatile("ldtilecfg %0" ::"m"(*s)); }
/* Tiles go back to zeros that no switch of threads has to save. */
V void tiles_end(void) { __asm__ volatile("tilerelease" ::: "memory"); }

#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, from, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, to, stride) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride)) : "memory")
/* sum[m][n] += over k of a[m][k] b[k][n], b having four bytes, or two numbers of bfloat16, of each n side by side. */
#define TILE_DOT_BYTES(sum, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::)
#define TILE_DOT_BF16(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::)

/* The lowest byte of each word, in all four. */
V vb vb_of_each(vi x)
{
    return _mm512_mullo_epi32(_mm512_and_si512(x, _mm512_set1_epi32(255)), _mm512_set1_epi32(0x01010101));
}
/* Signed bytes times the numbers of their words, as low + (high << bits), low being from -(1 << (bits - 1)) up. */
V void vb_scaled(vb codes, vi scale, int bits, vb *low, vb *high)
{
    const __m512i half = _mm512_set1_epi16((short)(1 << (bits - 1)));
    const __m512i mask = _mm512_set1_epi16((short)((1 << bits) - 1));
    __m512i s = _mm512_or_si512(_mm512_slli_epi32(scale, 16), _mm512_and_si512(scale, _mm512_set1_epi32(0xffff)));
    __m512i p[2] = {_mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8), s),
                    _mm512_mullo_epi16(_mm512_srai_epi16(codes, 8), s)}, l[2], h[2];
    for (int j = 0; j < 2; j++) {
        p[j] = _mm512_add_epi16(p[j], half);
        l[j] = _mm512_sub_epi16(_mm512_and_si512(p[j], mask), half);
        h[j] = _mm512_srai_epi16(p[j], (unsigned)bits);
    }
    *low = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, l[0], _mm512_slli_epi16(l[1], 8));
    *high = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, h[0], _mm512_slli_epi16(h[1], 8));
}
