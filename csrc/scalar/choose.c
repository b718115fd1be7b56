/* The largest of many scores: by digits of their rank, from the highest, and then in one pass. */
#include "scalar.h"

typedef union { float f; uint32_t u; } bits;

/* A number that is larger for a larger float, the same for both zeros, and the largest for NaN. */
static uint32_t rank_of(float x)
{
    bits b = {x};
    uint32_t rank = b.u & 0x80000000u ? (b.u == 0x80000000u ? b.u : ~b.u) : b.u | 0x80000000u;
    return (b.u & 0x7fffffffu) > 0x7f800000u ? UINT32_MAX : rank;
}

static float of_rank(uint32_t rank)
{
    bits b;
    b.u = rank & 0x80000000u ? rank & 0x7fffffffu : ~rank;
    return b.f;
}

void ox_block_max(const float *x, int64_t n, int64_t unit, float *y)
{
    for (int64_t first = 0; first < n; first += unit) {
        int64_t end = n - first < unit ? n : first + unit;
        uint32_t largest = 0; /* a number's rank is larger, and a maximum of integers needs no order */
        for (int64_t i = first; i < end; i++) {
            uint32_t rank = rank_of(x[i]);
            largest = rank > largest ? rank : largest;
        }
        *y++ = of_rank(largest);
    }
}

void ox_choose(const float *x, int64_t n, int64_t k, int32_t *chosen)
{
    enum { DIGITS = 3, SIZE = 2048 };
    static const int shift[DIGITS] = {21, 10, 0}, last[DIGITS] = {2047, 2047, 1023};
    uint32_t least = 0, known = 0; /* the rank of the smallest one that is chosen, as far as it is known */
    int64_t equal = k;             /* how many of this rank are */
    for (int d = 0; d < DIGITS; d++) {
        int64_t count[SIZE] = {0};
        for (int64_t i = 0; i < n; i++) {
            uint32_t rank = rank_of(x[i]);
            if ((rank & known) == least)
                count[rank >> shift[d] & (uint32_t)last[d]]++;
        }
        int digit = last[d];
        for (; digit > 0 && count[digit] < equal; digit--)
            equal -= count[digit];
        least |= (uint32_t)digit << shift[d];
        known |= (uint32_t)last[d] << shift[d];
    }
    for (int64_t i = 0, found = 0; found < k; i++) {
        uint32_t rank = rank_of(x[i]);
        if (rank < least || (rank == least && equal-- <= 0))
            continue;
        chosen[found++] = (int32_t)i;
    }
}
