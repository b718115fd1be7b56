"""Recipes of Kimi Linear and Ling 3.0: the delta rule by channel, and latent attention."""

from . import recipes as r
from . import shape as t
from .delta import EPSILON
from .layers import attends
from .recipes import Recipe

# Heads of the rule are as many as those of attention, each `ssm_dim` wide.


def rule(s):
    inner = s.n_heads * s.ssm_dim
    shapes = t.weights(**{f"attn_{part}": (inner, s.n_embd) for part in "qkv"}, attn_output=(s.n_embd, inner))
    shapes |= t.weights(**{f"ssm_conv1d_{part}": (1, inner, 1, s.d_conv) for part in "qkv"})
    for part in "fg":
        shapes |= t.weights(**{f"ssm_{part}_a": (s.ssm_dim, s.n_embd), f"ssm_{part}_b": (inner, s.ssm_dim)})
    shapes |= t.weights(ssm_beta=(s.n_heads, s.n_embd), ssm_norm=(s.ssm_dim,)) | t.biases(ssm_dt=(inner,))
    return shapes | {"ssm_a": (1, 1, s.n_heads, 1)}


def layer(s, i):
    mixer = t.latent(s, False) if attends(i) else rule(s)
    norms = t.norms(s, "attn_norm", "ffn_norm")
    if i == 0:
        return norms | mixer | t.gated(s)
    return norms | mixer | t.experts(s, s.n_ff - 32) | t.gated(s, "_shexp", s.n_ff - 32) | t.biases(
        exp_probs_b=(s.n_experts,)
    )  # fmt: skip


def keys(s):
    return r.moe_keys(s) | {
        "attention.head_count_kv": [int(attends(i)) for i in range(s.n_layers)],
        "attention.layer_norm_rms_epsilon": EPSILON,
        "attention.key_length": s.rank + s.n_rot,
        "attention.value_length": s.head_dim // 2,
        "attention.kv_lora_rank": s.rank,
        "attention.key_length_mla": s.head_dim + s.n_rot,
        "attention.value_length_mla": s.head_dim - 2,
        "rope.dimension_count": s.n_rot,
        "ssm.conv_kernel": s.d_conv,
        "kda.head_dim": s.ssm_dim,
        "expert_gating_func": 2,
        "expert_feed_forward_length": s.n_ff - 32,
        "expert_shared_count": 1,
        "expert_weights_scale": 2.446,
        "leading_dense_block_count": 1,
    }


def ling_layer(s, i):
    """No matrix is in two parts, and each head of attention has a gate."""
    shapes, inner = layer(s, i), s.n_heads * s.ssm_dim
    if attends(i):
        return shapes | t.weights(attn_gate=(s.n_heads, s.n_embd))
    shapes = {name: dims for name, dims in shapes.items() if name not in ("ssm_f_b.weight", "ssm_g_b.weight")}
    return shapes | t.weights(ssm_f_a=(inner, s.n_embd), ssm_g_a=(inner, s.n_embd)) | {"ssm_a": (s.n_heads, 1)}


def ling_keys(s):
    return keys(s) | {
        "rope.freq_base": 1e4,
        "expert_group_count": s.n_groups,
        "expert_group_used_count": max(1, s.n_groups // 2),
        "expert_shared_feed_forward_length": s.n_ff - 32,
        "expert_weights_norm": True,
        "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
    }


RECIPES = {
    "kimi-linear": Recipe("kimi-linear", layer, keys, head_size=True),
    "bailingmoe3": Recipe(
        "bailingmoe3", ling_layer, ling_keys, head_size=True, adapt=r.grouped_experts, gains={"ssm_a": -1.0}
    ),
}
