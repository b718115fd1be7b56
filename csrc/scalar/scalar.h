/* Functions of the scalar tier, and the loading of unaligned blocks. */
#ifndef OX_SCALAR_H
#define OX_SCALAR_H
#include "../ox_blocks.h"
#include "../ox_dispatch.h"
#include "half.h"

/* Six-bit scale and minimum of sub-block j of a Q4_K or Q5_K block: eight of each in twelve bytes. The first four pairs
 * are the low six bits of bytes 0..3 and 4..7; the others are four bits of bytes 8..11 and two high bits of the
 * first. */
static inline void ox_scale_min_k4(int j, const uint8_t *s, uint8_t *scale, uint8_t *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

#define OX_KERNEL_FORMAT(name, id, values, bytes, pvalues, pbytes)                              \
    void ox_dequantise_##name(const void *src, float *dst, int64_t n);                          \
    void ox_pack_##name(const void *src, size_t stride, int64_t n_rows, int64_t k, void *panel);\
    void ox_gemm_##name(const ox_gemm_args *a);
#define OX_NAMED_FORMAT(name, id, values, bytes)
#include "../ox_formats.def"

void ox_quantise_F32(const float *x, void *dst, int64_t n);
void ox_quantise_F16(const float *x, void *dst, int64_t n);
void ox_quantise_BF16(const float *x, void *dst, int64_t n);
void ox_quantise_Q8_0(const float *x, void *dst, int64_t n);
void ox_quantise_q8(const float *x, void *row, int64_t k, int64_t first, int64_t n);

void ox_rms_norm(const float *x, const float *w, float *y, int64_t n, float eps);
void ox_layer_norm(const float *x, const float *w, const float *b, float *y, int64_t n, float eps);
void ox_add(const float *x, float *y, int64_t n);
void ox_mul(const float *x, float *y, int64_t n);
void ox_add_scaled(const float *x, float a, float *y, int64_t n);
void ox_scale(float *x, float a, int64_t n);
void ox_softcap(float *x, float cap, int64_t n);
void ox_clamp(float *x, float limit, int64_t n);
void ox_swiglu(const float *gate, const float *up, float *y, int64_t n);
void ox_geglu(const float *gate, const float *up, float *y, int64_t n);
void ox_swiglu_oai(const float *gate, const float *up, float *y, int64_t n, float alpha, float limit);
void ox_swiglu_limited(const float *gate, const float *up, float *y, int64_t n, float limit);
void ox_geglu_erf(const float *gate, const float *up, float *y, int64_t n);
void ox_reglu(const float *gate, const float *up, float *y, int64_t n);
void ox_silu(float *x, int64_t n);
void ox_gelu(float *x, int64_t n);
void ox_gelu_erf(float *x, int64_t n);
void ox_relu(float *x, int64_t n);
void ox_relu2(float *x, int64_t n);
void ox_xielu(float *x, int64_t n, float p, float q, float beta, float eps);
void ox_sigmoid(float *x, int64_t n);
void ox_softplus(float *x, int64_t n);
void ox_softmax(float *x, int64_t n);
void ox_rope_neox(float *x, const float *cos_sin, int64_t n_rot);
void ox_rope_norm(float *x, const float *cos_sin, int64_t n_rot);
void ox_store_key_F32(const float *x, void *panel, int64_t lane, int64_t dim);
void ox_store_key_F16(const float *x, void *panel, int64_t lane, int64_t dim);
void ox_store_key_Q8_0(const float *x, void *panel, int64_t lane, int64_t dim);
void ox_store_key_Q4_0(const float *x, void *panel, int64_t lane, int64_t dim);
void ox_store_value_F32(const float *x, void *panel, int64_t lane, int64_t dim);
void ox_store_value_F16(const float *x, void *panel, int64_t lane, int64_t dim);
void ox_store_value_Q8_0(const float *x, void *panel, int64_t lane, int64_t dim);
void ox_store_value_Q4_0(const float *x, void *panel, int64_t lane, int64_t dim);
void ox_gather_keys_F32(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_keys_F16(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_keys_Q8_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_keys_Q4_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_values_F32(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_values_F16(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_values_Q8_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_gather_values_Q4_0(const void *const *panels, const int32_t *lanes, int64_t n, void *panel, int64_t dim);
void ox_to_f16(const float *x, uint16_t *y, int64_t n);
void ox_attention(const ox_attn_args *a);
void ox_attention_merge(const ox_attn_args *a, int64_t n);
void ox_index_scores(const ox_attn_args *a, const float *weights, size_t stride);
void ox_block_max(const float *x, int64_t n, int64_t unit, float *y);
void ox_choose(const float *x, int64_t n, int64_t k, int32_t *chosen);
void ox_conv1d(const ox_conv1d_args *a);
void ox_scan1(const ox_scan_args *a);
void ox_scan2(const ox_scan_args *a);
void ox_delta(const ox_delta_args *a);
void ox_dplr(const ox_dplr_args *a);
void ox_decay(const float *x, const float *bias, const float *a, float *y, int64_t n);
void ox_bounded_decay(const float *x, const float *bias, float a, float c, float *y, int64_t n);
void ox_l2_norm(const float *x, float *y, int64_t n, float eps, float scale);
void ox_gated_norm(const float *x, const float *z, const float *w, float *y, int64_t n, float eps);

#endif
