/* Packed layouts of tensor blocks: first as files store them (one row), then as kernels read them (16 rows).
 *
 * A packed block interleaves 16 rows of a weight matrix ("panel"), so that one vector register holds the same four
 * K-positions of 16 rows and a matrix product needs no horizontal sum: lane = output row. For 8-bit codes, vector j of
 * a 32-value chunk holds the values 4j..4j+3 of each row, as the VNNI and dot-product instructions want them.
 * Nibbles are paired so that one mask or shift of vector i gives vectors i (low) and i + 4 (high). */
#ifndef OX_BLOCKS_H
#define OX_BLOCKS_H
#include <stdint.h>

#define OX_PANEL 16 /* rows in a panel */
#define OX_CHUNK 32 /* values that share one activation scale */

typedef uint16_t ox_half; /* IEEE binary16 bits */

typedef struct { ox_half d; uint8_t qs[16]; } ox_q4_0;
typedef struct { ox_half d, m; uint8_t qs[16]; } ox_q4_1;
typedef struct { ox_half d; uint8_t qh[4]; uint8_t qs[16]; } ox_q5_0;
typedef struct { ox_half d, m; uint8_t qh[4]; uint8_t qs[16]; } ox_q5_1;
typedef struct { ox_half d; int8_t qs[32]; } ox_q8_0;
typedef struct { ox_half d, dmin; uint8_t scales[12]; uint8_t qs[128]; } ox_q4_k;
typedef struct { ox_half d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; } ox_q5_k;
typedef struct { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; ox_half d; } ox_q6_k;
typedef struct { ox_half d, s; int8_t qs[32]; } ox_q8_1;
typedef struct { float d; int8_t qs[256]; int16_t sums[16]; } ox_q8_k;
typedef struct { ox_half d; uint8_t qs[16]; } ox_q1_0;
typedef struct { ox_half d; uint8_t qs[16]; } ox_q2_0;
typedef struct { uint8_t scales[16]; uint8_t qs[64]; ox_half d, dmin; } ox_q2_k;
typedef struct { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; ox_half d; } ox_q3_k;
typedef struct { uint8_t qs[48]; uint8_t qh[4]; ox_half d; } ox_tq1_0;
typedef struct { uint8_t qs[64]; ox_half d; } ox_tq2_0;
typedef struct { uint8_t e; uint8_t qs[16]; } ox_mxfp4;
typedef struct { uint8_t d[4]; uint8_t qs[32]; } ox_nvfp4;
typedef struct { ox_half d; uint8_t qs[16]; } ox_iq4_nl;
typedef struct { ox_half d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; } ox_iq4_xs;
typedef struct { ox_half d; uint8_t qs[64]; } ox_iq2_xxs; /* for each chunk: 4 indices; 4 x 7 signs and a scale */
typedef struct { ox_half d; uint16_t qs[32]; uint8_t scales[8]; } ox_iq2_xs;
typedef struct { ox_half d; uint8_t qs[32]; uint8_t signs[32]; uint8_t qh[8]; uint8_t scales[8]; } ox_iq2_s;
typedef struct { ox_half d; uint8_t qs[64]; uint8_t signs[32]; } ox_iq3_xxs; /* signs of a chunk: 4 x 7 and a scale */
typedef struct { ox_half d; uint8_t qs[64]; uint8_t qh[8]; uint8_t signs[32]; uint8_t scales[4]; } ox_iq3_s;
typedef struct { ox_half d; uint8_t qs[32]; uint16_t qh[8]; } ox_iq1_s;
typedef struct { uint8_t qs[32]; uint8_t qh[16]; uint16_t scales[4]; } ox_iq1_m;

/* Codes are unsigned in every packed format (Q8_0: +128, Q6_K: +32), since VNNI multiplies unsigned by signed bytes;
 * kernels take the offset off through the sums of the activations. What a chunk needs lies together, in the order in
 * which it is read: of blocks with high and low bits in two streams, hardware prefetching gave half the bandwidth. */
typedef struct { ox_half d[16]; uint8_t qs[4][64]; } ox_q4_0x16;
typedef struct { ox_half d[16], m[16]; uint8_t qs[4][64]; } ox_q4_1x16;
/* Bit j of qh[lane] is the fifth bit of that lane in vector j. */
typedef struct { ox_half d[16]; uint8_t qh[64]; uint8_t qs[4][64]; } ox_q5_0x16;
typedef struct { ox_half d[16], m[16]; uint8_t qh[64]; uint8_t qs[4][64]; } ox_q5_1x16;
typedef struct { ox_half d[16]; uint8_t qs[8][64]; } ox_q8_0x16;
typedef struct { ox_half d[16], dmin[16]; uint8_t scales[8][16], mins[8][16]; uint8_t qs[8][4][64]; } ox_q4_kx16;
typedef struct { ox_half d[16], dmin[16]; uint8_t scales[8][16], mins[8][16];
                 struct { uint8_t qh[64], qs[4][64]; } chunks[8]; } ox_q5_kx16;
/* Bits 2s, 2s+1 of qh[chunk][p][lane] are the top two bits of that lane in vector 2s + p. */
typedef struct { ox_half d[16]; int8_t scales[16][16]; struct { uint8_t qh[2][64], qs[4][64]; } chunks[8]; } ox_q6_kx16;

/* All other formats keep the bits of their blocks and only interleave them: first the halves that stand beside the
 * codes (a scale, a second one), then words of four bytes, word w of the 16 rows side by side. So they take exactly
 * the size that they have in files, and kernels unpack a chunk's bits, and look its indices up, for as many rows as
 * a vector has lanes. scalar/words.c has the list. */
#define OX_WORDS(name, heads, n) typedef struct { ox_half head[heads][16]; uint32_t words[n][16]; } ox_##name##x16
#define OX_ONLY_WORDS(name, n) typedef struct { uint32_t words[n][16]; } ox_##name##x16
OX_WORDS(q8_1, 2, 8);
OX_ONLY_WORDS(q8_k, 73);
OX_WORDS(q1_0, 1, 4);
OX_WORDS(q2_0, 1, 4);
OX_WORDS(q2_k, 2, 20);
OX_WORDS(q3_k, 1, 27);
OX_WORDS(tq1_0, 1, 13);
OX_WORDS(tq2_0, 1, 16);
typedef struct { uint8_t e[16]; uint32_t words[4][16]; } ox_mxfp4x16;
OX_ONLY_WORDS(nvfp4, 9);
OX_WORDS(iq4_nl, 1, 4);
OX_WORDS(iq4_xs, 2, 33);
OX_WORDS(iq2_xxs, 1, 16);
OX_WORDS(iq2_xs, 1, 18);
OX_WORDS(iq2_s, 1, 20);
OX_WORDS(iq3_xxs, 1, 24);
OX_WORDS(iq3_s, 1, 27);
OX_WORDS(iq1_s, 1, 12);
OX_ONLY_WORDS(iq1_m, 14);
#undef OX_WORDS
#undef OX_ONLY_WORDS

#define OX_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has padding")
OX_SIZE(ox_q4_0, 18);
OX_SIZE(ox_q4_1, 20);
OX_SIZE(ox_q5_0, 22);
OX_SIZE(ox_q5_1, 24);
OX_SIZE(ox_q8_0, 34);
OX_SIZE(ox_q4_k, 144);
OX_SIZE(ox_q5_k, 176);
OX_SIZE(ox_q6_k, 210);
OX_SIZE(ox_q4_0x16, 288);
OX_SIZE(ox_q4_1x16, 320);
OX_SIZE(ox_q5_0x16, 352);
OX_SIZE(ox_q5_1x16, 384);
OX_SIZE(ox_q8_0x16, 544);
OX_SIZE(ox_q4_kx16, 2368);
OX_SIZE(ox_q5_kx16, 2880);
OX_SIZE(ox_q6_kx16, 3360);
#define OX_SIZES(name, bytes) OX_SIZE(ox_##name, bytes); OX_SIZE(ox_##name##x16, 16 * (bytes))
OX_SIZES(q8_1, 36);
OX_SIZES(q8_k, 292);
OX_SIZES(q1_0, 18);
OX_SIZES(q2_0, 18);
OX_SIZES(q2_k, 84);
OX_SIZES(q3_k, 110);
OX_SIZES(tq1_0, 54);
OX_SIZES(tq2_0, 66);
OX_SIZES(mxfp4, 17);
OX_SIZES(nvfp4, 36);
OX_SIZES(iq4_nl, 18);
OX_SIZES(iq4_xs, 136);
OX_SIZES(iq2_xxs, 66);
OX_SIZES(iq2_xs, 74);
OX_SIZES(iq2_s, 82);
OX_SIZES(iq3_xxs, 98);
OX_SIZES(iq3_s, 110);
OX_SIZES(iq1_s, 50);
OX_SIZES(iq1_m, 56);
#undef OX_SIZES
#undef OX_SIZE

#endif
