/* One token's key or value into its lane of a panel; included after quantise.h. */
#include "../scalar/four_bits.h"

static void store_key_F16(const float *x, void *panel, int64_t lane, int64_t dim)
{
    uint16_t *dst = (uint16_t *)panel + lane;
    for (int64_t i = 0; i < dim; i += VL) {
        uint16_t part[VL];
        vf_to_half(part, load_part(x + i, dim - i, 0));
        for (int64_t r = 0; r < VL && i + r < dim; r++)
            dst[16 * (i + r)] = part[r];
    }
}

static void store_value_F16(const float *x, void *panel, int64_t lane, int64_t dim)
{
    to_f16(x, (uint16_t *)panel + (size_t)lane * ox_round_up((size_t)dim, 16), dim);
}

/* Codes and scale of 32 values, of which n are there. The codes are those of the unrounded scale. */
INLINE uint16_t quantise_chunk(const float *x, int64_t n, int8_t *codes)
{
    float part[OX_CHUNK] = {0};
    union { int8_t codes[OX_CHUNK]; float words[OX_CHUNK / 4 + 5]; } row;
    for (int64_t i = 0; n < OX_CHUNK && i < n; i++)
        part[i] = x[i];
    quantise_q8(n < OX_CHUNK ? part : x, &row, OX_CHUNK, 0, OX_CHUNK);
    uint16_t halves[VL];
    vf_to_half(halves, vf_set1(row.words[OX_CHUNK / 4]));
    for (int i = 0; i < OX_CHUNK; i++)
        codes[i] = row.codes[i];
    return halves[0];
}

static void store_key_Q8_0(const float *x, void *panel, int64_t lane, int64_t dim)
{
    size_t chunks = ox_round_up((size_t)dim, OX_CHUNK) / OX_CHUNK;
    uint16_t *scales = (uint16_t *)((uint8_t *)panel + 512 * chunks);
    for (size_t c = 0; c < chunks; c++) {
        int8_t codes[OX_CHUNK];
        scales[16 * c + (size_t)lane] = quantise_chunk(x + OX_CHUNK * c, dim - (int64_t)(OX_CHUNK * c), codes);
        uint8_t *dst = (uint8_t *)panel + 512 * c + 4 * lane;
        for (int i = 0; i < OX_CHUNK; i++)
            dst[i / 4 * 64 + i % 4] = (uint8_t)(codes[i] + 128);
    }
}

static void store_value_Q8_0(const float *x, void *panel, int64_t lane, int64_t dim)
{
    size_t dims = ox_round_up((size_t)dim, OX_CHUNK), chunks = dims / OX_CHUNK;
    uint16_t *scales = (uint16_t *)((uint8_t *)panel + 512 * chunks);
    for (size_t c = 0; c < chunks; c++) {
        int8_t codes[OX_CHUNK], *dst = (int8_t *)panel + (size_t)(lane / 4) * dims * 4 + OX_CHUNK * 4 * c + lane % 4;
        scales[16 * c + (size_t)lane] = quantise_chunk(x + OX_CHUNK * c, dim - (int64_t)(OX_CHUNK * c), codes);
        for (int i = 0; i < OX_CHUNK; i++)
            dst[4 * i] = codes[i];
    }
}

static void store_key_Q4_0(const float *x, void *panel, int64_t lane, int64_t dim)
{
    ox_put_key_4_bits(x, panel, lane, dim);
}

static void store_value_Q4_0(const float *x, void *panel, int64_t lane, int64_t dim)
{
    ox_put_value_4_bits(x, panel, lane, dim);
}
