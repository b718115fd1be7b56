/* What a format of interleaved words must tell: where its fields lie, and the values of one chunk of a block. */
#ifndef OX_SCALAR_WORDS_H
#define OX_SCALAR_WORDS_H
#include "../ox_grids.h"
#include "scalar.h"

/* 32 values: w = scale[half] * code - min[half], with a scale and a minimum for each 16. Where those are whole
 * multiples of numbers of the block, scale = d * s and min = dmin * m, a product takes the whole numbers first. */
typedef struct {
    int8_t code[32];
    float scale[2], min[2], d, dmin;
    int32_t s[2], m[2];
} ox_values;
/* The values of chunk c of a block as files store it. All but the codes is zero before the call. */
typedef void ox_decode_fn(const void *block, int c, ox_values *v);

ox_decode_fn ox_decode_Q8_1, ox_decode_Q8_K, ox_decode_Q1_0, ox_decode_Q2_0, ox_decode_Q2_K, ox_decode_Q3_K;
ox_decode_fn ox_decode_TQ1_0, ox_decode_TQ2_0, ox_decode_MXFP4, ox_decode_NVFP4, ox_decode_IQ4_NL, ox_decode_IQ4_XS;
ox_decode_fn ox_decode_IQ2_XXS, ox_decode_IQ2_XS, ox_decode_IQ2_S, ox_decode_IQ3_XXS, ox_decode_IQ3_S;
ox_decode_fn ox_decode_IQ1_S, ox_decode_IQ1_M;

static inline void ox_set_scales(ox_values *v, float first, float second) { v->scale[0] = first; v->scale[1] = second; }

static inline void ox_set_multiples(ox_values *v, float d, int first, int second)
{
    v->d = d;
    v->s[0] = first, v->s[1] = second;
    ox_set_scales(v, d * (float)first, d * (float)second);
}

#endif
