/* Values of one chunk of 32: formats whose codes are numbers or look up one of 16. */
#include "words.h"

void ox_decode_Q8_1(const void *block, int c, ox_values *v)
{
    const ox_q8_1 *b = block;
    (void)c;
    memcpy(v->code, b->qs, 32);
    ox_set_scales(v, ox_half_to_float(b->d), ox_half_to_float(b->d));
}

void ox_decode_Q8_K(const void *block, int c, ox_values *v)
{
    const ox_q8_k *b = block;
    memcpy(v->code, b->qs + 32 * c, 32);
    ox_set_scales(v, b->d, b->d);
}

void ox_decode_Q1_0(const void *block, int c, ox_values *v)
{
    const ox_q1_0 *b = block;
    for (int l = 0; l < 32; l++)
        v->code[l] = (int8_t)(2 * (b->qs[4 * c + l / 8] >> l % 8 & 1) - 1);
    ox_set_scales(v, ox_half_to_float(b->d), ox_half_to_float(b->d));
}

void ox_decode_Q2_0(const void *block, int c, ox_values *v)
{
    const ox_q2_0 *b = block;
    for (int l = 0; l < 32; l++)
        v->code[l] = (int8_t)((b->qs[8 * c + l / 4] >> 2 * (l % 4) & 3) - 1);
    ox_set_scales(v, ox_half_to_float(b->d), ox_half_to_float(b->d));
}

void ox_decode_Q2_K(const void *block, int c, ox_values *v)
{
    const ox_q2_k *b = block;
    for (int l = 0; l < 32; l++)
        v->code[l] = (int8_t)(b->qs[32 * (c / 4) + l] >> 2 * (c % 4) & 3);
    const uint8_t *s = b->scales + 2 * c;
    ox_set_multiples(v, ox_half_to_float(b->d), s[0] & 15, s[1] & 15);
    v->dmin = ox_half_to_float(b->dmin);
    for (int h = 0; h < 2; h++) {
        v->m[h] = s[h] >> 4;
        v->min[h] = v->dmin * (float)v->m[h];
    }
}

/* Six-bit scale j: four bits in a nibble of the first eight bytes, two in the last four. */
static int scale_q3_k(const uint8_t *s, int j)
{
    return ((s[j % 8] >> 4 * (j / 8) & 15) | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
}

void ox_decode_Q3_K(const void *block, int c, ox_values *v)
{
    const ox_q3_k *b = block;
    for (int l = 0; l < 32; l++)
        v->code[l] = (int8_t)((b->qs[32 * (c / 4) + l] >> 2 * (c % 4) & 3) + 4 * (b->hmask[l] >> c & 1) - 4);
    ox_set_multiples(v, ox_half_to_float(b->d), scale_q3_k(b->scales, 2 * c), scale_q3_k(b->scales, 2 * c + 1));
}

/* Digit n of five in base 3, the first being the highest: the byte is the number times 256/243, rounded up. */
static int8_t trit(uint8_t byte, int n)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (int8_t)((((byte * power[n]) & 255) * 3 >> 8) - 1);
}

void ox_decode_TQ1_0(const void *block, int c, ox_values *v)
{
    const ox_tq1_0 *b = block;
    for (int l = 0; l < 32; l++) {
        int i = 32 * c + l; /* 5 x 32 digits of the first 32 bytes, 5 x 16 of the next 16, 4 x 4 of the last 4 */
        v->code[l] = i < 160 ? trit(b->qs[i % 32], i / 32)
                   : i < 240 ? trit(b->qs[32 + i % 16], (i - 160) / 16) : trit(b->qh[i % 4], (i - 240) / 4);
    }
    ox_set_scales(v, ox_half_to_float(b->d), ox_half_to_float(b->d));
}

void ox_decode_TQ2_0(const void *block, int c, ox_values *v)
{
    const ox_tq2_0 *b = block;
    for (int l = 0; l < 32; l++)
        v->code[l] = (int8_t)((b->qs[32 * (c / 4) + l] >> 2 * (c % 4) & 3) - 1);
    ox_set_scales(v, ox_half_to_float(b->d), ox_half_to_float(b->d));
}

void ox_decode_MXFP4(const void *block, int c, ox_values *v)
{
    const ox_mxfp4 *b = block;
    (void)c;
    for (int l = 0; l < 32; l++)
        v->code[l] = ox_codes_fp4[b->qs[l % 16] >> 4 * (l / 16) & 15];
    ox_set_scales(v, ox_e8m0_half(b->e), ox_e8m0_half(b->e));
}

void ox_decode_NVFP4(const void *block, int c, ox_values *v)
{
    const ox_nvfp4 *b = block;
    for (int l = 0; l < 32; l++) /* 16 values in 8 bytes: low nibbles, then high ones */
        v->code[l] = ox_codes_fp4[b->qs[16 * c + 8 * (l / 16) + l % 8] >> 4 * (l / 8 % 2) & 15];
    ox_set_scales(v, ox_e4m3_half(b->d[2 * c]), ox_e4m3_half(b->d[2 * c + 1]));
}

void ox_decode_IQ4_NL(const void *block, int c, ox_values *v)
{
    const ox_iq4_nl *b = block;
    (void)c;
    for (int l = 0; l < 32; l++)
        v->code[l] = ox_codes_iq4[b->qs[l % 16] >> 4 * (l / 16) & 15];
    ox_set_scales(v, ox_half_to_float(b->d), ox_half_to_float(b->d));
}

void ox_decode_IQ4_XS(const void *block, int c, ox_values *v)
{
    const ox_iq4_xs *b = block;
    int scale = ((b->scales_l[c / 2] >> 4 * (c % 2) & 15) | (b->scales_h >> 2 * c & 3) << 4) - 32;
    for (int l = 0; l < 32; l++)
        v->code[l] = ox_codes_iq4[b->qs[16 * c + l % 16] >> 4 * (l / 16) & 15];
    ox_set_scales(v, ox_half_to_float(b->d) * (float)scale, ox_half_to_float(b->d) * (float)scale);
}
