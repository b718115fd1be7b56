/* Keys and values of four bits (OX_KV_Q4_0): the source of every tier. Sums are integers, and floats are added in an
 * order that vectors keep, so that what is stored never depends on the machine.
 *
 * Each vector is rotated before it is coded. Single values of keys are many times larger than the others (Liu et al.,
 * "KIVI", 2024), and take the codes from those that share their scale; rotated, all values are about the same, and
 * scores of rotated queries and keys are those of unrotated ones (Ashkboos et al., "QuaRot", 2024). Outputs are rotated
 * back. */
#ifndef OX_FOUR_BITS_H
#define OX_FOUR_BITS_H
#include <math.h>
#include "../ox_kernels.h"
#include "half.h"

enum { OX_ROTATED = 256 }; /* values that are rotated together at most */

/* What codes stand for: fitted to 32 normally distributed values, as rotated ones nearly are, and their three places
 * below. The squares that they lose are 0.0059 of the values', and those of equal steps 0.0074 (ggml's Q4_0). */
static const int8_t ox_codes_kv[16] = {-127, -98, -77, -59, -44, -31, -18, -6, 6, 18, 31, 44, 59, 77, 98, 127};

/* Values of a vector of n, a multiple of 32, that are rotated together: the largest power of two that divides it. */
static inline size_t ox_rotated(size_t n) { return (n & -n) < OX_ROTATED ? n & -n : OX_ROTATED; }

/* A pass adds and subtracts halves, side by side: all passes of a Walsh-Hadamard transform have one form then (Pease,
 * 1968). */
static inline __attribute__((always_inline)) void ox_rotate_pass(const float *x, float *y, const size_t run)
{
    for (size_t i = 0; i < run / 2; i++) {
        y[2 * i] = x[i] + x[i + run / 2];
        y[2 * i + 1] = x[i] - x[i + run / 2];
    }
}

static inline __attribute__((always_inline)) void ox_rotate_run(float *x, const size_t run, const int passes,
                                                                float scale)
{
    float y[OX_ROTATED];
    if (passes % 2) {
        memcpy(y, x, run * 4);
        ox_rotate_pass(y, x, run);
    }
    for (int pass = 0; pass < passes / 2; pass++) {
        ox_rotate_pass(x, y, run);
        ox_rotate_pass(y, x, run);
    }
    for (size_t i = 0; i < run; i++)
        x[i] *= scale;
}

/* n values in place, a multiple of 32, by an orthonormal symmetric matrix: its own inverse. */
static inline void ox_rotate(float *x, size_t n)
{
    size_t run = ox_rotated(n);
    for (size_t i = 0; i < n; i += run)
        switch (run) {
        case 32: ox_rotate_run(x + i, 32, 5, 0x1.6a09e6p-3f); break;
        case 64: ox_rotate_run(x + i, 64, 6, 0x1p-3f); break;
        case 128: ox_rotate_run(x + i, 128, 7, 0x1.6a09e6p-4f); break;
        default: ox_rotate_run(x + i, OX_ROTATED, 8, 0x1p-4f);
        }
}

/* The magnitudes of 32 values as integers of which the largest is 32767, whether each is negative, and what one is
 * worth: NaN if a value is NaN or infinite. */
static inline float ox_magnitudes(const float *x, int16_t *magnitude, int16_t *negative)
{
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t u = ox_float_to_bits(x[i]) & 0x7fffffff;
        bits = u > bits ? u : bits;
    }
    if (bits < 0x08000000 || bits >= 0x7f800000) { /* below 2^-111 the inverse would overflow */
        memset(magnitude, 0, 64);
        memset(negative, 0, 64);
        return bits >= 0x7f800000 ? NAN : 0;
    }
    float max = ox_bits_to_float(bits), inverse = 32767 / max;
    for (int i = 0; i < 32; i++) {
        int32_t fixed = (int32_t)((x[i] * inverse + 0x1.8p23f) - 0x1.8p23f); /* the adder rounds */
        negative[i] = (int16_t)(fixed < 0);
        magnitude[i] = (int16_t)(fixed < 0 ? -fixed : fixed);
    }
    return max * (1.0f / 32767);
}

enum { OX_PLACES = 3 }; /* of the largest value among the codes */

/* Magnitudes above which the next code is nearer, where the largest stands for `place`. */
#define OX_MIDDLES(place)                                                                                              \
    {24 * 32767 / (2 * place), 49 * 32767 / (2 * place), 75 * 32767 / (2 * place), 103 * 32767 / (2 * place),          \
     136 * 32767 / (2 * place), 175 * 32767 / (2 * place), 225 * 32767 / (2 * place)}
static const int16_t ox_middles[OX_PLACES][7] = {OX_MIDDLES(124), OX_MIDDLES(132), OX_MIDDLES(140)};

/* Codes and scale of 32 values: those of the place whose codes, with the scale of least squares, are nearest. Scales
 * are never negative: weights of values are multiplied with them. */
static inline uint16_t ox_code_4_bits(const float *x, uint8_t *codes)
{
    int16_t magnitude[32], negative[32];
    float unit = ox_magnitudes(x, magnitude, negative), most = -1, scale = 0;
    int best = 0;
    for (int place = 0; place < OX_PLACES; place++) {
        int32_t product = 0, square = 0;
        const int16_t *middle = ox_middles[place];
        for (int i = 0; i < 32; i++) {
            int16_t code = ox_codes_kv[8];
            for (int n = 0; n < 7; n++)
                code += (int16_t)(-(magnitude[i] > middle[n]) & (ox_codes_kv[9 + n] - ox_codes_kv[8 + n]));
            product += magnitude[i] * code;
            square += code * code;
        }
        /* less is the sum of squared errors */
        float ratio = (float)product / (float)square, gain = (float)product * ratio;
        best = gain > most ? place : best;
        scale = gain > most ? ratio * unit : scale;
        most = gain > most ? gain : most;
    }
    for (int i = 0; i < 32; i++) {
        int16_t index = 0;
        for (int n = 0; n < 7; n++)
            index += (int16_t)(magnitude[i] > ox_middles[best][n]);
        codes[i] = (uint8_t)(negative[i] ? 7 - index : 8 + index);
    }
    return ox_float_to_half(scale);
}

/* A vector's lane of a panel: the codes i and i + 16 of a chunk in one byte, at
 * start + chunk c + four (i / 4) + one (i % 4). */
static inline void ox_store_4_bits(const float *x, int64_t dim, uint8_t *panel, int64_t lane, size_t start,
                                   size_t chunk, size_t four, size_t one)
{
    size_t n = ox_round_up((size_t)dim, 32), run = ox_rotated(n);
    uint16_t *scales = (uint16_t *)(panel + 8 * n) + lane;
    for (size_t first = 0; first < n; first += run) {
        float rotated[OX_ROTATED];
        for (size_t i = 0; i < run; i++)
            rotated[i] = first + i < (size_t)dim ? x[first + i] : 0;
        ox_rotate(rotated, run);
        for (size_t c = first / 32; c < (first + run) / 32; c++) {
            uint8_t codes[32];
            scales[16 * c] = ox_code_4_bits(rotated + 32 * c - first, codes);
            for (size_t i = 0; i < 16; i++)
                panel[start + chunk * c + four * (i / 4) + one * (i % 4)] = (uint8_t)(codes[i] | codes[i + 16] << 4);
        }
    }
}

static inline void ox_put_key_4_bits(const float *x, void *panel, int64_t lane, int64_t dim)
{
    ox_store_4_bits(x, dim, panel, lane, 4 * (size_t)lane, 256, 64, 1);
}

static inline void ox_put_value_4_bits(const float *x, void *panel, int64_t lane, int64_t dim)
{
    size_t group = 2 * ox_round_up((size_t)dim, 32); /* of four tokens */
    ox_store_4_bits(x, dim, panel, lane, (size_t)lane / 4 * group + (size_t)lane % 4, 64, 16, 4);
}

/* What the code of dimension i of a token stands for. */
static inline int ox_key_code_4_bits(const uint8_t *panel, int64_t lane, int64_t i)
{
    uint8_t both = panel[256 * (i / 32) + 64 * (i % 16 / 4) + 4 * lane + i % 4];
    return ox_codes_kv[i % 32 < 16 ? both & 15 : both >> 4];
}

static inline int ox_value_code_4_bits(const uint8_t *panel, int64_t lane, int64_t i, int64_t dims)
{
    uint8_t both = panel[lane / 4 * 2 * dims + 64 * (i / 32) + 4 * (i % 16) + lane % 4];
    return ox_codes_kv[i % 32 < 16 ? both & 15 : both >> 4];
}

#endif
