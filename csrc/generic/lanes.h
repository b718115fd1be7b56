/* Blocks side by side: lane = block, so that fitting the scale of one is plain code without a horizontal sum, every
 * block goes through the same operations in the same order whatever LANES is, and bytes are equal on every tier. The
 * including file defines LANES, the floats in a vector of its tier. Vector types are those of gcc and clang. */
#include <string.h>
#include "../ox_grids.h"
#include "../scalar/scalar.h"
#include "inline.h"

#define MAX_SIZE 256 /* values in a block */

typedef float lf __attribute__((vector_size(4 * LANES)));
typedef int32_t li __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves[LANES];
typedef uint8_t codes[LANES][MAX_SIZE]; /* of each block */

INLINE lf lf_set1(float x) { return (lf){0} + x; }
/* Where a comparison holds (all bits set), a, else b. */
INLINE lf pick(li where, lf a, lf b) { return (lf)((where & (li)a) | (~where & (li)b)); }
INLINE lf lf_min(lf a, lf b) { return pick(a < b, a, b); }
INLINE lf lf_max(lf a, lf b) { return pick(a > b, a, b); }
INLINE lf lf_abs(lf x) { return (lf)((li)x & 0x7fffffff); }
INLINE lf clamp(lf x, float low, float high) { return lf_min(lf_max(x, lf_set1(low)), lf_set1(high)); }
/* To the nearest whole number, for magnitudes below 2^22: the adder of the FPU does the rounding. */
INLINE lf nearest(lf x) { return (x + 0x1.8p23f) - 0x1.8p23f; }
/* 1 / x, or 0 where x is 0. */
INLINE lf inverse(lf x) { return pick(x != 0, 1.0f / x, (lf){0}); }
INLINE lf lf_half(const halves h)
{
    lf x = {0};
    for (int l = 0; l < LANES; l++)
        x[l] = ox_half_to_float(h[l]);
    return x;
}

/* The next halves, `step` away in magnitude; 0 has none below, and infinity stays: what is too large must be seen. */
INLINE void neighbours(const halves h, int step, halves out)
{
    for (int l = 0; l < LANES; l++) {
        int magnitude = (h[l] & 0x7fff) + step;
        magnitude = magnitude < 0 ? 0 : (h[l] & 0x7fff) == 0x7c00 ? 0x7c00 : magnitude;
        out[l] = (uint16_t)((h[l] & 0x8000) | magnitude);
    }
}
INLINE void to_halves(lf x, halves h)
{
    for (int l = 0; l < LANES; l++)
        h[l] = ox_float_to_half(x[l]);
}
INLINE void pick_halves(li where, const halves a, halves b)
{
    for (int l = 0; l < LANES; l++)
        b[l] = where[l] ? a[l] : b[l];
}

/* Blocks whose values were multiplied by a power of two, so that sums of squares neither overflow nor vanish. */
typedef struct { lf x[MAX_SIZE]; lf down, up; } blocks; /* down: the power of two; up: its inverse, 0 beyond float */

/* `count` <= LANES blocks of `size` values; the other lanes are zero. The largest magnitude becomes 1 to 2. */
INLINE void load_blocks(blocks *b, const float *x, int count, int size)
{
    li exponent = {0};
    for (int j = 0; j < size; j++) {
        lf v = {0};
        for (int l = 0; l < LANES; l++)
            v[l] = l < count ? x[l * size + j] : 0;
        li e = (li)v & 0x7f800000;
        exponent = (li)pick(e > exponent, (lf)e, (lf)exponent);
        b->x[j] = v;
    }
    li largest = (li){0} + (253 << 23);
    exponent = (li)pick(exponent > largest, (lf)largest, (lf)exponent);
    b->down = (lf)((254 << 23) - exponent);
    b->up = (lf)exponent;
    for (int j = 0; j < size; j++)
        b->x[j] *= b->down;
}
