/* One token's key or value into its lane of a panel of 16 tokens, and those of several panels into one. */
#include "four_bits.h"
#include "scalar.h"

void ox_store_key_F32(const float *x, void *panel, int64_t lane, int64_t dim)
{
    for (int64_t i = 0; i < dim; i++)
        ((float *)panel)[16 * i + lane] = x[i];
}

void ox_store_key_F16(const float *x, void *panel, int64_t lane, int64_t dim)
{
    for (int64_t i = 0; i < dim; i++)
        ((uint16_t *)panel)[16 * i + lane] = ox_float_to_half(x[i]);
}

void ox_store_value_F32(const float *x, void *panel, int64_t lane, int64_t dim)
{
    memcpy((float *)panel + (size_t)lane * ox_round_up((size_t)dim, 16), x, (size_t)dim * 4);
}

void ox_store_value_F16(const float *x, void *panel, int64_t lane, int64_t dim)
{
    ox_to_f16(x, (uint16_t *)panel + (size_t)lane * ox_round_up((size_t)dim, 16), dim);
}

/* Codes and scale of up to 32 values. Missing ones are zero. */
static uint16_t quantise_chunk(const float *x, int64_t n, int8_t *codes)
{
    float part[32] = {0};
    union { int8_t codes[32]; float words[13]; } row;
    memcpy(part, x, (size_t)(n < 32 ? n : 32) * 4);
    ox_quantise_q8(part, &row, 32, 0, 32);
    memcpy(codes, row.codes, 32);
    return ox_float_to_half(row.words[8]);
}

void ox_store_key_Q8_0(const float *x, void *panel, int64_t lane, int64_t dim)
{
    int64_t chunks = (dim + 31) / 32;
    uint16_t *scales = (uint16_t *)((uint8_t *)panel + 512 * chunks);
    for (int64_t c = 0; c < chunks; c++) {
        int8_t codes[32];
        scales[16 * c + lane] = quantise_chunk(x + 32 * c, dim - 32 * c, codes);
        for (int64_t i = 0; i < 32; i++)
            ((uint8_t *)panel)[(8 * c + i / 4) * 64 + 4 * lane + i % 4] = (uint8_t)(codes[i] + 128);
    }
}

void ox_store_value_Q8_0(const float *x, void *panel, int64_t lane, int64_t dim)
{
    int64_t chunks = (dim + 31) / 32;
    uint16_t *scales = (uint16_t *)((uint8_t *)panel + 512 * chunks);
    for (int64_t c = 0; c < chunks; c++) {
        int8_t codes[32];
        scales[16 * c + lane] = quantise_chunk(x + 32 * c, dim - 32 * c, codes);
        for (int64_t i = 0; i < 32; i++)
            ((int8_t *)panel)[(lane / 4 * chunks * 32 + 32 * c + i) * 4 + lane % 4] = codes[i];
    }
}

void ox_store_key_Q4_0(const float *x, void *panel, int64_t lane, int64_t dim)
{
    ox_put_key_4_bits(x, panel, lane, dim);
}

void ox_store_value_Q4_0(const float *x, void *panel, int64_t lane, int64_t dim)
{
    ox_put_value_4_bits(x, panel, lane, dim);
}

/* Words of up to 16 lanes, `count` of each in words of 16. */
#define GATHER_LANES(type, count)                                     \
    for (int64_t i = 0; i < (count); i++)                             \
        for (int64_t l = 0; l < n; l++)                               \
            ((type *)panel)[16 * i + l] = ((const type *)panels[l])[16 * i + lanes[l]];

void ox_gather_keys_F32(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    GATHER_LANES(uint32_t, dim)
}

void ox_gather_keys_F16(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    GATHER_LANES(uint16_t, dim)
}

/* The scales behind the codes of a panel, words of 16 lanes. */
static void gather_scales(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t chunks,
                          int64_t words)
{
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t l = 0; l < n; l++) {
            const uint16_t *from = (const uint16_t *)panels[l] + 32 * words + 16 * c;
            ((uint16_t *)panel)[32 * words + 16 * c + l] = from[lanes[l]];
        }
}

static void gather_key_codes(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t chunks,
                             int64_t words)
{
    GATHER_LANES(uint32_t, words)
    gather_scales(panels, lanes, n, panel, chunks, words);
}

void ox_gather_keys_Q8_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    gather_key_codes(panels, lanes, n, panel, (dim + 31) / 32, (dim + 31) / 32 * 8);
}

void ox_gather_keys_Q4_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    gather_key_codes(panels, lanes, n, panel, (dim + 31) / 32, (dim + 31) / 32 * 4);
}

static void gather_rows(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, size_t bytes)
{
    for (int64_t l = 0; l < n; l++)
        memcpy((uint8_t *)panel + (size_t)l * bytes, (const uint8_t *)panels[l] + (size_t)lanes[l] * bytes, bytes);
}

void ox_gather_values_F32(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    gather_rows(panels, lanes, n, panel, ox_round_up((size_t)dim, 16) * 4);
}

void ox_gather_values_F16(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    gather_rows(panels, lanes, n, panel, ox_round_up((size_t)dim, 16) * 2);
}

/* `bytes` of each token's codes. */
static void gather_value_codes(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t chunks,
                               int64_t bytes)
{
    for (int64_t l = 0; l < n; l++) {
        const uint8_t *src = (const uint8_t *)panels[l] + lanes[l] / 4 * bytes * 4 + lanes[l] % 4;
        uint8_t *dst = (uint8_t *)panel + l / 4 * bytes * 4 + l % 4;
        for (int64_t i = 0; i < bytes; i++)
            dst[4 * i] = src[4 * i];
    }
    gather_scales(panels, lanes, n, panel, chunks, bytes / 4);
}

void ox_gather_values_Q8_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    gather_value_codes(panels, lanes, n, panel, (dim + 31) / 32, (dim + 31) / 32 * 32);
}

void ox_gather_values_Q4_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim)
{
    gather_value_codes(panels, lanes, n, panel, (dim + 31) / 32, (dim + 31) / 32 * 16);
}
