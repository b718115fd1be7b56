/* The scalar table: complete, so that a tier above needs only what it improves. */
#include "scalar.h"

void ox_scalar_init(ox_kernels *t)
{
    *t = (ox_kernels){
#define OX_KERNEL_FORMAT(name, id, values, bytes, pvalues, pbytes) .dequantise[OX_##name] = ox_dequantise_##name, \
        .pack[OX_##name] = ox_pack_##name, .gemm[OX_##name] = ox_gemm_##name,
#define OX_NAMED_FORMAT(name, id, values, bytes)
#include "../ox_formats.def"
        .quantise[OX_F32] = ox_quantise_F32,
        .quantise[OX_F16] = ox_quantise_F16,
        .quantise[OX_BF16] = ox_quantise_BF16,
        .quantise[OX_Q8_0] = ox_quantise_Q8_0,
        .quantise_q8 = ox_quantise_q8,
        .rms_norm = ox_rms_norm,
        .layer_norm = ox_layer_norm,
        .add = ox_add,
        .mul = ox_mul,
        .add_scaled = ox_add_scaled,
        .scale = ox_scale,
        .softcap = ox_softcap,
        .clamp = ox_clamp,
        .swiglu = ox_swiglu,
        .geglu = ox_geglu,
        .swiglu_oai = ox_swiglu_oai,
        .swiglu_limited = ox_swiglu_limited,
        .geglu_erf = ox_geglu_erf,
        .reglu = ox_reglu,
        .silu = ox_silu,
        .gelu = ox_gelu,
        .gelu_erf = ox_gelu_erf,
        .relu = ox_relu,
        .relu2 = ox_relu2,
        .xielu = ox_xielu,
        .sigmoid = ox_sigmoid,
        .softplus = ox_softplus,
        .softmax = ox_softmax,
        .rope_neox = ox_rope_neox,
        .rope_norm = ox_rope_norm,
        .store_key = {ox_store_key_F32, ox_store_key_F16, ox_store_key_Q8_0, ox_store_key_Q4_0},
        .store_value = {ox_store_value_F32, ox_store_value_F16, ox_store_value_Q8_0, ox_store_value_Q4_0},
        .to_f16 = ox_to_f16,
        .attention = ox_attention,
        .attention_merge = ox_attention_merge,
        .index_scores = ox_index_scores,
        .block_max = ox_block_max,
        .choose = ox_choose,
        .gather_keys = {ox_gather_keys_F32, ox_gather_keys_F16, ox_gather_keys_Q8_0, ox_gather_keys_Q4_0},
        .gather_values = {ox_gather_values_F32, ox_gather_values_F16, ox_gather_values_Q8_0, ox_gather_values_Q4_0},
        .conv1d = ox_conv1d,
        .scan1 = ox_scan1,
        .scan2 = ox_scan2,
        .delta = ox_delta,
        .dplr = ox_dplr,
        .decay = ox_decay,
        .bounded_decay = ox_bounded_decay,
        .l2_norm = ox_l2_norm,
        .gated_norm = ox_gated_norm,
    };
    ox_scalar_quantisers(t);
}
