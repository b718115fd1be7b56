/* Values of one chunk of 32: formats whose codes are points of a grid. */
#include "words.h"

/* Eight signs from seven: the last makes their number even. */
static int even_signs(uint32_t seven)
{
    uint32_t p = seven ^ seven >> 4;
    p ^= p >> 2;
    p ^= p >> 1;
    return (int)(seven | (p & 1) << 7);
}

static void put_iq2(int8_t *code, uint16_t point, int signs)
{
    for (int l = 0; l < 8; l++) {
        int8_t value = ox_codes_iq2[point >> 2 * l & 3];
        code[l] = (int8_t)(signs >> l & 1 ? -value : value);
    }
}

static void put_iq3(int8_t *code, const int8_t *codes, uint16_t point, int signs)
{
    for (int l = 0; l < 4; l++) {
        int8_t value = codes[point >> 4 * l & 15];
        code[l] = (int8_t)(signs >> l & 1 ? -value : value);
    }
}

/* level + 1/8 or level - 1/8, in eighths */
static void put_iq1(int8_t *code, uint16_t point, int minus)
{
    for (int l = 0; l < 8; l++)
        code[l] = (int8_t)(ox_codes_iq1[point >> 2 * l & 3] + (minus ? -1 : 1));
}

void ox_decode_IQ2_XXS(const void *block, int c, ox_values *v)
{
    const ox_iq2_xxs *b = block;
    uint32_t rest;
    memcpy(&rest, b->qs + 8 * c + 4, 4);
    for (int g = 0; g < 4; g++)
        put_iq2(v->code + 8 * g, ox_grid_iq2_xxs[b->qs[8 * c + g]], even_signs(rest >> 7 * g & 127));
    float scale = ox_half_to_float(b->d) * 0.125f * (float)(2 * (rest >> 28) + 1);
    ox_set_scales(v, scale, scale);
}

void ox_decode_IQ2_XS(const void *block, int c, ox_values *v)
{
    const ox_iq2_xs *b = block;
    float d = ox_half_to_float(b->d) * 0.125f;
    for (int g = 0; g < 4; g++)
        put_iq2(v->code + 8 * g, ox_grid_iq2_xs[b->qs[4 * c + g] & 511], even_signs(b->qs[4 * c + g] >> 9));
    ox_set_multiples(v, d, 2 * (b->scales[c] & 15) + 1, 2 * (b->scales[c] >> 4) + 1);
}

void ox_decode_IQ2_S(const void *block, int c, ox_values *v)
{
    const ox_iq2_s *b = block;
    float d = ox_half_to_float(b->d) * 0.125f;
    for (int g = 0; g < 4; g++)
        put_iq2(v->code + 8 * g, ox_grid_iq2_s[b->qs[4 * c + g] | (b->qh[c] >> 2 * g & 3) << 8], b->signs[4 * c + g]);
    ox_set_multiples(v, d, 2 * (b->scales[c] & 15) + 1, 2 * (b->scales[c] >> 4) + 1);
}

void ox_decode_IQ3_XXS(const void *block, int c, ox_values *v)
{
    const ox_iq3_xxs *b = block;
    uint32_t rest;
    memcpy(&rest, b->signs + 4 * c, 4);
    for (int j = 0; j < 8; j++)
        put_iq3(v->code + 4 * j, ox_codes_iq3_xxs, ox_grid_iq3_xxs[b->qs[8 * c + j]],
                even_signs(rest >> 7 * (j / 2) & 127) >> 4 * (j % 2));
    float scale = ox_half_to_float(b->d) * 0.25f * (float)(2 * (rest >> 28) + 1);
    ox_set_scales(v, scale, scale);
}

void ox_decode_IQ3_S(const void *block, int c, ox_values *v)
{
    const ox_iq3_s *b = block;
    for (int j = 0; j < 8; j++)
        put_iq3(v->code + 4 * j, ox_codes_iq3_s, ox_grid_iq3_s[b->qs[8 * c + j] | (b->qh[c] >> j & 1) << 8],
                b->signs[4 * c + j / 2] >> 4 * (j % 2));
    float scale = ox_half_to_float(b->d) * (float)(2 * (b->scales[c / 2] >> 4 * (c % 2) & 15) + 1);
    ox_set_scales(v, scale, scale);
}

void ox_decode_IQ1_S(const void *block, int c, ox_values *v)
{
    const ox_iq1_s *b = block;
    for (int g = 0; g < 4; g++)
        put_iq1(v->code + 8 * g, ox_grid_iq1_s[b->qs[4 * c + g] | (b->qh[c] >> 3 * g & 7) << 8], b->qh[c] >> 15);
    float scale = ox_half_to_float(b->d) * 0.125f * (float)(2 * (b->qh[c] >> 12 & 7) + 1);
    ox_set_scales(v, scale, scale);
}

void ox_decode_IQ1_M(const void *block, int c, ox_values *v)
{
    const ox_iq1_m *b = block;
    const uint16_t *s = b->scales; /* twelve bits of scales each, and four of the block's scale */
    int bits = s[0] >> 12 | (s[1] >> 8 & 0xf0) | (s[2] >> 4 & 0xf00) | (s[3] & 0xf000);
    float d = ox_half_to_float((uint16_t)bits) * 0.125f;
    for (int g = 0; g < 4; g++) {
        int high = b->qh[2 * c + g / 2] >> 4 * (g % 2);
        put_iq1(v->code + 8 * g, ox_grid_iq1_s[b->qs[4 * c + g] | (high & 7) << 8], high & 8);
    }
    int scales = s[c / 2] >> 6 * (c % 2);
    ox_set_multiples(v, d, 2 * (scales & 7) + 1, 2 * (scales >> 3 & 7) + 1);
}
