"""For every architecture, the tensors of one layer."""

from . import shape as t


def llama_layer(s, i, **options):
    return t.norms(s, "attn_norm", "ffn_norm") | t.qkv(s, **options) | t.output(s) | t.gated(s)


def qwen2_layer(s, i):
    return llama_layer(s, i, bias=True)


def qwen3_layer(s, i):
    return llama_layer(s, i) | t.head_norms(s)


def moe_layer(s, i, n_ff=None):
    return t.norms(s, "attn_norm", "ffn_norm") | t.qkv(s) | t.output(s) | t.experts(s, n_ff)


def qwen2moe_layer(s, i):
    shared = t.gated(s, "_shexp") | t.weights(ffn_gate_inp_shexp=(1, s.n_embd))
    return t.norms(s, "attn_norm", "ffn_norm") | t.qkv(s, bias=True) | t.output(s) | t.experts(s, s.n_ff - 32) | shared


def gpt2_layer(s, i):
    shapes = t.norms(s, "attn_norm", "ffn_norm", bias=True)
    return shapes | t.fused_qkv(s, bias=True) | t.output(s, bias=True) | t.plain(s)


def mpt_layer(s, i):
    return t.norms(s, "attn_norm", "ffn_norm") | t.fused_qkv(s) | t.output(s) | t.plain(s, bias=False)


def starcoder2_layer(s, i):
    shapes = t.norms(s, "attn_norm", "ffn_norm", bias=True)
    return shapes | t.qkv(s, bias=True) | t.output(s, bias=True) | t.plain(s)


def phi2_layer(s, i):
    return t.norms(s, "attn_norm", bias=True) | t.qkv(s, bias=True) | t.output(s, bias=True) | t.plain(s)


def falcon_layer(s, i, *norms):
    return t.norms(s, "attn_norm", *norms, bias=True) | t.fused_qkv(s) | t.output(s) | t.plain(s, bias=False)


def stablelm_layer(s, i, large=False):
    """The 12B model has norms of heads and none of its own for the feed-forward part."""
    shapes = t.norms(s, "attn_norm", *[] if large else ["ffn_norm"], bias=True)
    return shapes | t.qkv(s, bias=not large) | t.output(s) | t.gated(s) | (t.each_head_norms(s) if large else {})


def phi3_layer(s, i):
    return t.norms(s, "attn_norm", "ffn_norm") | t.fused_qkv(s) | t.output(s) | t.gate_in_up(s)


def cohere_layer(s, i, large=False):
    shapes = t.norms(s, "attn_norm") | t.qkv(s) | t.output(s) | t.gated(s)
    return shapes | (t.each_head_norms(s) if large else {})


def dbrx_layer(s, i):
    return t.norms(s, "attn_norm", "attn_output_norm") | t.fused_qkv(s) | t.output(s) | t.experts(s)


def olmo2_layer(s, i):
    norms = t.norms(s, "post_attention_norm", "post_ffw_norm")
    return norms | t.qkv(s) | t.output(s) | t.projection_norms(s) | t.gated(s)


def gemma2_layer(s, i):
    return llama_layer(s, i) | t.norms(s, "post_attention_norm", "post_ffw_norm")


def gemma3_layer(s, i):
    return gemma2_layer(s, i) | t.head_norms(s)


def glm4_layer(s, i):
    norms = t.norms(s, "attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
    return norms | t.qkv(s, bias=True) | t.output(s) | t.gate_in_up(s)


def gpt_oss_layer(s, i):
    shapes = t.norms(s, "attn_norm", "post_attention_norm") | t.qkv(s, bias=True) | t.output(s, bias=True)
    return shapes | t.weights(attn_sinks=(s.n_heads,)) | t.experts(s) | t.expert_biases(s)


def granitemoe_layer(s, i):
    return moe_layer(s, i) | t.gated(s, "_shexp", s.n_ff + 32)


def granite_swa_layer(s, i):
    return llama_layer(s, i) | t.weights(attn_sinks=(s.n_heads,))


def granite_swa_moe_layer(s, i):
    """As the converter writes experts: gate and up in one matrix, of the shared one too."""
    shapes = t.norms(s, "attn_norm", "ffn_norm") | attention(s) | t.weights(attn_sinks=(s.n_heads,))
    shapes |= t.weights(
        ffn_gate_inp=(s.n_experts, s.n_embd),
        ffn_gate_up_exps=(s.n_experts, 2 * s.n_ff, s.n_embd),
        ffn_down_exps=(s.n_experts, s.n_embd, s.n_ff),
    )
    n_shared = s.n_ff + 32
    return shapes | t.weights(ffn_up_shexp=(2 * n_shared, s.n_embd), ffn_down_shexp=(s.n_embd, n_shared))


def minicpm3_layer(s, i):
    return t.norms(s, "attn_norm", "ffn_norm") | t.latent(s, True, split=False, v_dim=s.head_dim) | t.gated(s)


def deepseek_layer(s, i, low_rank_queries=True, correction=False, split=True):
    shapes = t.norms(s, "attn_norm", "ffn_norm") | t.latent(s, low_rank_queries, split)
    if i == 0:
        return shapes | t.gated(s)
    shapes |= t.experts(s, s.n_ff - 32) | t.gated(s, "_shexp", 2 * (s.n_ff - 32))
    return shapes | (t.biases(exp_probs_b=(s.n_experts,)) if correction else {})


def bert_layer(s, i):
    shapes = t.norms(s, "attn_output_norm", "layer_output_norm", bias=True)
    return shapes | t.qkv(s, bias=True) | t.output(s, bias=True) | t.plain(s)


# Hybrids: layers 1, 4, 7 ... are attention.


def attends(i):
    return i % 3 == 1


def hybrid_kv_heads(s):
    return {"attention.head_count_kv": [s.n_kv_heads * attends(i) for i in range(s.n_layers)]}


def hybrid_layer(s, i, mixer, attention, ffn):
    shapes = t.norms(s, "attn_norm", "ffn_norm") | ffn(s)
    return shapes | (attention(s) if attends(i) else mixer(s))


def attention(s):
    return t.qkv(s) | t.output(s)


def normed_attention(s):
    return attention(s) | t.head_norms(s)


def jamba_layer(s, i):
    return hybrid_layer(s, i, lambda s: t.mamba(s, True), attention, t.experts if i % 2 else t.gated)


def granitehybrid_layer(s, i):
    shared = t.gated(s, "_shexp", s.n_ff + 32)
    return hybrid_layer(s, i, t.mamba2, attention, lambda s: t.experts(s) | shared)


def lfm2_layer(s, i):
    return hybrid_layer(s, i, t.short_convolution, normed_attention, t.gated)


def falcon_h1_layer(s, i, norm=False):
    shapes = t.norms(s, "attn_norm") | {"ffn_norm": (s.n_embd,)} | t.gated(s)
    return shapes | attention(s) | t.mamba2(s, norm)
