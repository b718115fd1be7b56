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

/* Codes are unsigned in every packed format (Q8_0: +128, Q6_K: +32), since VNNI multiplies unsigned by signed bytes;
 * kernels take the offset off through the sums of the activations. */
typedef struct { ox_half d[16]; uint8_t qs[4][64]; } ox_q4_0x16;
typedef struct { ox_half d[16], m[16]; uint8_t qs[4][64]; } ox_q4_1x16;
/* Bit j of qh[lane] is the fifth bit of that lane in vector j. */
typedef struct { ox_half d[16]; uint8_t qh[64]; uint8_t qs[4][64]; } ox_q5_0x16;
typedef struct { ox_half d[16], m[16]; uint8_t qh[64]; uint8_t qs[4][64]; } ox_q5_1x16;
typedef struct { ox_half d[16]; uint8_t qs[8][64]; } ox_q8_0x16;
typedef struct { ox_half d[16], dmin[16]; uint8_t scales[8][16], mins[8][16]; uint8_t qs[8][4][64]; } ox_q4_kx16;
typedef struct { ox_half d[16], dmin[16]; uint8_t scales[8][16], mins[8][16]; uint8_t qh[8][64]; uint8_t qs[8][4][64]; } ox_q5_kx16;
/* Bits 2s, 2s+1 of qh[chunk][p][lane] are the top two bits of that lane in vector 2s + p. */
typedef struct { ox_half d[16]; int8_t scales[16][16]; uint8_t qh[8][2][64]; uint8_t qs[8][4][64]; } ox_q6_kx16;

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
#undef OX_SIZE

#endif
