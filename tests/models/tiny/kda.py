"""Recipes of Kimi Linear: the delta rule by channel, and latent attention."""

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


RECIPES = {"kimi-linear": Recipe("kimi-linear", layer, keys, head_size=True)}
