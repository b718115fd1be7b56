/* Everything that is no matrix product of weights, and the slots that it fills. */
#include "q8.h"
#include "functions.h"
#include "rows.h"
#include "activations.h"
#include "quantise.h"
#include "kv_store.h"
#include "attention.h"
#include "index.h"
#include "recurrent.h"
#include "delta.h"

static void fill_other(ox_kernels *t)
{
    t->dequantise[OX_F16] = dequantise_f16;
    t->quantise_q8 = quantise_q8;
    t->rms_norm = rms_norm;
    t->layer_norm = layer_norm;
    t->add = add;
    t->mul = mul;
    t->add_scaled = add_scaled;
    t->scale = scale;
    t->softcap = softcap;
    t->clamp = clamp;
    t->swiglu = swiglu;
    t->geglu = geglu;
    t->swiglu_oai = swiglu_oai;
    t->swiglu_limited = swiglu_limited;
    t->geglu_erf = geglu_erf;
    t->reglu = reglu;
    t->silu = silu;
    t->gelu = gelu;
    t->gelu_erf = gelu_erf;
    t->relu = relu;
    t->relu2 = relu2;
    t->xielu = xielu;
    t->sigmoid = sigmoid;
    t->softplus = softplus;
    t->softmax = softmax;
    t->rope_neox = rope_neox;
    t->to_f16 = to_f16;
    t->store_key[OX_KV_F16] = store_key_F16;
    t->store_key[OX_KV_Q8_0] = store_key_Q8_0;
    t->store_key[OX_KV_Q4_0] = store_key_Q4_0;
    t->store_value[OX_KV_F16] = store_value_F16;
    t->store_value[OX_KV_Q8_0] = store_value_Q8_0;
    t->store_value[OX_KV_Q4_0] = store_value_Q4_0;
    t->attention = attention;
    t->attention_merge = attention_merge;
    t->index_scores = index_scores;
    t->conv1d = conv1d;
    t->scan1 = scan1;
    t->scan2 = scan2;
    t->delta = delta;
    t->dplr = dplr;
    t->decay = decay;
    t->bounded_decay = bounded_decay;
    t->l2_norm = l2_norm;
    t->gated_norm = gated_norm;
}
