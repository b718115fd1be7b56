"""Recipes of sparse models with a sigmoid router, and of what is built of the same parts."""

from dataclasses import replace

from . import layers as of
from . import recipes as r
from . import relatives as rel
from . import shape as t
from .recipes import Recipe


def gate(s, by_head=False):
    return t.weights(attn_gate=(s.n_heads if by_head else s.q_dim, s.n_embd))


def without(keys, *names):
    return {key: value for key, value in keys.items() if key not in names}


def shared_width(s):
    return {"expert_shared_feed_forward_length": 2 * (s.n_ff - 32)}


def pattern(s, whole=lambda i: i % 4 == 3):
    return {
        "attention.sliding_window": s.window,
        "attention.sliding_window_pattern": [not whole(i) for i in range(s.n_layers)],
    }


def two_bases(s):
    return {"rope.freq_base": 5e5, "rope.freq_base_swa": 1e4}


def minimax_m2_layer(s, i):
    return of.moe_layer(s, i) | t.projection_norms(s) | t.biases(exp_probs_b=(s.n_experts,))


def minimax_m2_keys(s):
    return r.moe_keys(s) | r.partial(s) | {"expert_feed_forward_length": s.n_ff, "expert_gating_func": 2}


def sparse_layer(s, i):
    return rel.shared_moe(s, i, of.normed_attention, correction=True)


def afmoe_layer(s, i):
    return sparse_layer(s, i) | gate(s) | t.norms(s, "post_attention_norm", "post_ffw_norm")


def bailingmoe2_layer(s, i):
    return rel.shared_moe(s, i, lambda s: t.fused_qkv(s) | t.output(s) | t.head_norms(s), correction=True)


def bailingmoe2_keys(s):
    groups = {"expert_group_count": s.n_groups, "expert_group_used_count": max(1, s.n_groups // 2)}
    return rel.sigmoid_keys(s) | groups | r.partial(s)


def more_heads(s, i, whole):
    """Layers with a window have twice the heads."""
    return s if whole(i) else replace(s, n_heads=2 * s.n_heads)


def first_of_four(i):
    return i % 4 == 0


def first_of_three(i):
    return i % 3 == 0


def laguna_layer(s, i, by_head=True):
    s = more_heads(s, i, first_of_four)
    return sparse_layer(s, i) | gate(s, by_head)


def laguna_keys(s):
    return without(rel.sigmoid_keys(s), "expert_shared_count") | shared_width(s) | r.yarn(s) | two_bases(s) | {
        "attention.head_count": [more_heads(s, i, first_of_four).n_heads for i in range(s.n_layers)],
        "attention.sliding_window": s.window,
        "rope.dimension_count": s.n_rot,
        "rope.dimension_count_swa": s.head_dim,
    }  # fmt: skip


def hy_v3_layer(s, i):
    """Without the last part of the name of the router's correction."""
    return {name.replace("exp_probs_b.bias", "exp_probs_b"): dims for name, dims in sparse_layer(s, i).items()}


def hy_v3_keys(s):
    return without(rel.sigmoid_keys(s), "expert_shared_count", "leading_dense_block_count") | shared_width(s)


def cohere2moe_layer(s, i):
    return without(rel.shared_moe(s, i, of.attention), "ffn_norm.weight")


def cohere2moe_keys(s):
    scales = {"logit_scale": 0.3, "rope.dimension_count": s.head_dim}
    return without(rel.sigmoid_keys(s), "expert_weights_scale") | pattern(s, first_of_three) | scales


def mellum_keys(s):
    sparse = r.moe_keys(s) | {"expert_feed_forward_length": s.n_ff - 32}
    return sparse | pattern(s) | r.yarn(s) | two_bases(s)


def mistral4_layer(s, i):
    """Each expert's gate and other matrix in one."""
    shapes = t.norms(s, "attn_norm", "ffn_norm") | t.latent(s, True) | t.experts(s, s.n_ff - 32)
    shapes |= t.gated(s, "_shexp", 2 * (s.n_ff - 32))
    joint = t.weights(ffn_gate_up_exps=(s.n_experts, 2 * (s.n_ff - 32), s.n_embd))
    return without(shapes, "ffn_gate_exps.weight", "ffn_up_exps.weight") | joint


def mistral4_keys(s):
    keys = r.deepseek2_keys(s) | r.yarn(s) | {"rope.scaling.yarn_log_multiplier": 0.1}
    return keys | {"leading_dense_block_count": 0, "expert_weights_norm": True}


def step35_layer(s, i):
    s = more_heads(s, i, first_of_three)
    return sparse_layer(s, i) | gate(s, by_head=True)


def step35_keys(s):
    """Bounds that some values exceed; there are none in some layers."""
    keys = without(rel.sigmoid_keys(s), "expert_shared_count") | shared_width(s) | two_bases(s)
    return keys | pattern(s, first_of_three) | {
        "attention.head_count": [more_heads(s, i, first_of_three).n_heads for i in range(s.n_layers)],
        "attention.head_count_kv": [s.n_kv_heads] * s.n_layers,
        "moe_every_n_layers": 1,
        "swiglu_clamp_exp": [0.3 * (i % 2) for i in range(s.n_layers)],
        "swiglu_clamp_shexp": [0.25 * (i % 3 != 1) for i in range(s.n_layers)],
    }  # fmt: skip


def even_halves(s):
    """Half of a head is rotated in pairs."""
    return replace(s, head_dim=4 * (s.head_dim // 4))


def mimo2_heads(s, i):
    """Layers with a window have as many keys as queries."""
    return s if first_of_three(i) else replace(s, n_kv_heads=s.n_heads)


def mimo2_layer(s, i):
    s = mimo2_heads(s, i)
    narrow = replace(s, head_dim=s.head_dim - 2)
    shapes = without(sparse_layer(s, i), "attn_q_norm.weight", "attn_k_norm.weight") | t.output(narrow)
    shapes = {name: dims for name, dims in shapes.items() if "_shexp" not in name}
    shapes |= t.weights(attn_v=(narrow.kv_dim, s.n_embd))
    return shapes if first_of_three(i) else shapes | t.weights(attn_sinks=(s.n_heads,))


def mimo2_keys(s):
    return r.moe_keys(s) | r.partial(s) | two_bases(s) | {
        "attention.head_count_kv": [mimo2_heads(s, i).n_kv_heads for i in range(s.n_layers)],
        "attention.value_length": s.head_dim - 2,
        "attention.value_scale": 0.7,
        "attention.sliding_window": s.window,
        "attention.sliding_window_pattern": [int(not first_of_three(i)) for i in range(s.n_layers)],
        "expert_feed_forward_length": s.n_ff - 32,
        "expert_gating_func": 2,
    }  # fmt: skip


def smallthinker_keys(s):
    return r.moe_keys(s) | {"expert_feed_forward_length": s.n_ff, "expert_gating_func": 2}


def llama4_layer(s, i, step=1):
    shapes = t.norms(s, "attn_norm", "ffn_norm") | t.qkv(s) | t.output(s)
    if (i + 1) % step:
        return shapes | t.gated(s)
    return shapes | t.experts(s, s.n_ff - 32) | t.gated(s, "_shexp", s.n_ff - 32)


def llama4_keys(s, step=1):
    return r.moe_keys(s) | {
        "expert_feed_forward_length": s.n_ff - 32,
        "interleave_moe_layer_step": step,
        "rope.dimension_count": s.head_dim,
    }


def one_of_those_left(s):
    """One expert is used, and there is no choice in shapes that use all."""
    return replace(s, n_experts=s.n_experts - s.n_used + 1, n_used=1)


def llama4_short_keys(s):
    """Chunks and steps as short as the tests' texts, which converters don't write."""
    return llama4_keys(s, 2) | {"attention.sliding_window": s.window, "attention.temperature_length": 7}


def muse_layer(s, i):
    return of.gemma3_layer(s, i) | gate(s)


def muse_keys(s):
    return pattern(s) | {"rope.freq_base": 5e5, "logit_scale": 0.25, "final_logit_softcapping": 3.0}


def nemotron_h_moe_layer(s, i, latent=0):
    """Mamba-2, experts, attention, and again; experts have no gate."""
    if i % 3 != 1:
        return rel.nemotron_h_layer(s, i)
    width, n, n_ff = latent or s.n_embd, s.n_experts, s.n_ff - 32
    shapes = t.norms(s, "attn_norm") | t.biases(exp_probs_b=(n,)) | t.weights(
        ffn_gate_inp=(n, s.n_embd),
        ffn_up_exps=(n, n_ff, width),
        ffn_down_exps=(n, width, n_ff),
        ffn_up_shexp=(s.n_ff, s.n_embd),
        ffn_down_shexp=(s.n_embd, s.n_ff),
    )  # fmt: skip
    return shapes | (t.weights(ffn_latent_down=(latent, s.n_embd), ffn_latent_up=(s.n_embd, latent)) if latent else {})


def nemotron_h_moe_keys(s):
    return rel.nemotron_h_keys(s) | r.moe_keys(s) | {
        "feed_forward_length": [(s.n_ff - 32) * (i % 3 == 1) for i in range(s.n_layers)],
        "expert_feed_forward_length": s.n_ff - 32,
        "expert_shared_feed_forward_length": s.n_ff,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
    }  # fmt: skip


LAGUNA = Recipe("laguna", laguna_layer, laguna_keys, head_size=True)
COHERE2MOE = Recipe("cohere2moe", cohere2moe_layer, cohere2moe_keys, rms=False, tied=True, head_size=True)
SMALLTHINKER = Recipe("smallthinker", of.moe_layer, smallthinker_keys, head_size=True)
NEMOTRON_H = rel.RECIPES["nemotron_h"]
NEMOTRON_H_MOE = Recipe("nemotron_h_moe", nemotron_h_moe_layer, nemotron_h_moe_keys, rms=False, head_size=True)

LLAMA4 = Recipe(
    "llama4",
    llama4_layer,
    llama4_keys,
    extra=lambda s: t.weights(rope_freqs=(s.head_dim // 2,)),
    head_size=True,
    adapt=one_of_those_left,
)

RECIPES = {
    "llama4": LLAMA4,
    "llama4-short": replace(LLAMA4, layer=lambda s, i: llama4_layer(s, i, 2), keys=llama4_short_keys),
    "minimax-m2": Recipe("minimax-m2", minimax_m2_layer, minimax_m2_keys, head_size=True),
    "afmoe": Recipe("afmoe", afmoe_layer, r.all_of(rel.sigmoid_keys, r.window), head_size=True),
    "bailingmoe2": Recipe(
        "bailingmoe2", bailingmoe2_layer, bailingmoe2_keys, head_size=True, adapt=r.grouped_experts
    ),
    "laguna": LAGUNA,
    "laguna-m": replace(  # a gate for every value, no windows
        LAGUNA,
        layer=lambda s, i: laguna_layer(s, i, by_head=False),
        keys=lambda s: without(laguna_keys(s), "attention.sliding_window"),
    ),
    "exaone-moe": Recipe(
        "exaone-moe", sparse_layer, r.all_of(rel.sigmoid_keys, pattern, shared_width), head_size=True
    ),
    "hy_v3": Recipe("hy_v3", hy_v3_layer, hy_v3_keys, head_size=True),
    "cohere2moe": COHERE2MOE,
    "cohere2moe-rms": replace(COHERE2MOE, rms=True),
    "mellum": Recipe(
        "mellum", lambda s, i: of.moe_layer(s, i, s.n_ff - 32) | t.head_norms(s), mellum_keys, head_size=True
    ),
    "mistral4": Recipe("mistral4", mistral4_layer, mistral4_keys, head_size=True),
    "step35": Recipe("step35", step35_layer, step35_keys, head_size=True, adapt=even_halves),
    "mimo2": Recipe("mimo2", mimo2_layer, mimo2_keys, head_size=True),
    "smallthinker": SMALLTHINKER,
    "smallthinker-21b": replace(
        SMALLTHINKER, keys=lambda s: smallthinker_keys(s) | {"attention.sliding_window": 4096}
    ),
    "muse-glimmer": Recipe("muse-glimmer", muse_layer, muse_keys, head_size=True),
    "nemotron_h-two": replace(NEMOTRON_H, rms=False),
    "nemotron_h_moe": NEMOTRON_H_MOE,
    "nemotron_h_moe-latent": replace(
        NEMOTRON_H_MOE,
        layer=lambda s, i: nemotron_h_moe_layer(s, i, latent=s.rank),
        keys=lambda s: nemotron_h_moe_keys(s) | {"moe_latent_size": s.rank},
    ),
    "glm4moe-solar": Recipe(
        "glm4moe",
        lambda s, i: rel.glm4moe_layer(s, i, of.attention),
        r.all_of(rel.sigmoid_keys, r.partial),
        head_size=True,
    ),
}  # fmt: skip
