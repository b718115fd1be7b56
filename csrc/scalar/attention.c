/* Attention over block tables, tile by tile with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022). */
#include <math.h>
#include "scalar.h"

void ox_kv_store_f32(const float *x, void *k_panel, int64_t lane, int64_t head_dim)
{
    for (int64_t i = 0; i < head_dim; i++)
        ((float *)k_panel)[16 * i + lane] = x[i];
}

void ox_kv_store_f16(const float *x, void *k_panel, int64_t lane, int64_t head_dim)
{
    for (int64_t i = 0; i < head_dim; i++)
        ((uint16_t *)k_panel)[16 * i + lane] = ox_float_to_half(x[i]);
}

static float element(const void *base, int f16, size_t i)
{
    return f16 ? ox_half_to_float(((const uint16_t *)base)[i]) : ((const float *)base)[i];
}

static const void *block_of(const ox_attn_args *a, const void *slab, size_t bytes, int64_t key)
{
    return (const uint8_t *)slab + (size_t)a->blocks[key / a->block_tokens] * bytes;
}

static float score(const ox_attn_args *a, const float *q, int64_t key)
{
    const void *k = block_of(a, a->k, a->k_block_bytes, key);
    size_t in_block = (size_t)(key % a->block_tokens), panel = in_block / 16 * (size_t)a->head_dim * 16;
    float s = 0;
    for (int i = 0; i < a->head_dim; i++)
        s += q[i] * element(k, a->kv_f16, panel + (size_t)i * 16 + in_block % 16);
    return s * a->scale;
}

static void add_value(const ox_attn_args *a, float p, int64_t key, float *acc)
{
    const void *v = block_of(a, a->v, a->v_block_bytes, key);
    size_t row = (size_t)(key % a->block_tokens) * (size_t)((a->head_dim + 15) / 16 * 16);
    for (int i = 0; i < a->head_dim; i++)
        acc[i] += p * element(v, a->kv_f16, row + (size_t)i);
}

static void one_query(const ox_attn_args *a, const float *q, int64_t pos, float *out)
{
    int64_t first = a->window > 0 && pos + 1 > a->window ? pos + 1 - a->window : 0;
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < a->head_dim; i++)
        out[i] = 0;
    for (int64_t tile = first / OX_ATTN_TILE * OX_ATTN_TILE; tile <= pos; tile += OX_ATTN_TILE) {
        int64_t from = tile < first ? first : tile, to = tile + OX_ATTN_TILE < pos + 1 ? tile + OX_ATTN_TILE : pos + 1;
        float s[OX_ATTN_TILE], new_max = max;
        for (int64_t key = from; key < to; key++)
            new_max = fmaxf(new_max, s[key - tile] = score(a, q, key));
        float correction = expf(max - new_max);
        sum *= correction;
        for (int i = 0; i < a->head_dim; i++)
            out[i] *= correction;
        for (int64_t key = from; key < to; key++) {
            float p = expf(s[key - tile] - new_max);
            sum += p;
            add_value(a, p, key, out);
        }
        max = new_max;
    }
    for (int i = 0; i < a->head_dim; i++)
        out[i] /= sum;
}

void ox_attention(const ox_attn_args *a)
{
    for (int32_t i = 0; i < a->n_queries; i++)
        for (int32_t h = 0; h < a->group; h++)
            one_query(a, a->q + (size_t)i * a->q_stride + (size_t)h * (size_t)a->head_dim, a->pos + i,
                      a->out + (size_t)i * a->out_stride + (size_t)h * (size_t)a->head_dim);
}
