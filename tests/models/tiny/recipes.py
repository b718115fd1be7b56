"""For every architecture, the keys and tensors that llama.cpp's converter writes for a model of a shape."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from . import layers as of
from . import shape as t


@dataclass(frozen=True)
class Recipe:
    """``layer(s, i)``: tensors of layer i; ``keys(s)``: beside those of all architectures."""

    arch: str
    layer: Callable
    keys: Callable = lambda s: {}
    rms: bool = True  # which norm: the name of the epsilon's key, and whether output_norm has a bias
    norm_bias: bool = False
    tied: bool = False  # no output.weight
    final_norm: str = "output_norm"
    extra: Callable = lambda s: {}  # tensors outside layers
    head_size: bool = False  # keys attention.key_length and value_length
    kv_heads: str = "key"  # "key": as the shape has it; "heads": as many as heads, in a key; "no key": as many as heads
    bare: Callable = lambda s: {}  # keys without the architecture's name
    gains: dict = field(default_factory=dict)  # of tensors by name without ".weight", beside what all have
    adapt: Callable = field(default=lambda s: s)  # what else the architecture asks of a shape

    def shape(self, s):
        if self.kv_heads != "key":
            s = replace(s, n_kv_heads=s.n_heads)
        if not self.head_size:
            s = replace(s, n_embd=s.n_heads * s.head_dim)
        return self.adapt(s)

    def top(self, s):
        shapes = {"token_embd.weight": (s.n_vocab, s.n_embd)}
        if self.final_norm:
            shapes |= t.norms(s, self.final_norm, bias=self.norm_bias)
        if not self.tied:
            shapes |= t.weights(output=(s.n_vocab, s.n_embd))
        return shapes | self.extra(s)

    def all_keys(self, s):
        keys = {
            "block_count": s.n_layers,
            "context_length": s.context,
            "embedding_length": s.n_embd,
            "feed_forward_length": s.n_ff,
            "attention.head_count": s.n_heads,
            f"attention.layer_norm_{'rms_' * self.rms}epsilon": 1e-5,
        }
        if self.kv_heads != "no key":
            keys["attention.head_count_kv"] = s.n_kv_heads
        if self.head_size:
            keys |= {"attention.key_length": s.head_dim, "attention.value_length": s.head_dim}
        return keys | self.keys(s)


def base(value, **more):
    return lambda s: {"rope.freq_base": value, **more}


def moe_keys(s):
    return {"expert_count": s.n_experts, "expert_used_count": s.n_used}


def partial(s):
    return {"rope.dimension_count": s.n_rot}


def window(s):
    return {"attention.sliding_window": s.window}


def all_of(*parts):
    return lambda s: {key: value for part in parts for key, value in part(s).items()}


def granite_keys(s):
    return {"attention.scale": 0.17, "embedding_scale": 3.0, "residual_scale": 0.6, "logit_scale": 2.5}


def granite_swa_keys(s):
    """Each third layer sees the whole past, and each second one rotates: the converter says both by layer."""
    return granite_keys(s) | {
        "attention.sliding_window": s.window,
        "attention.sliding_window_pattern": [i % 3 != 2 for i in range(s.n_layers)],
        "attention.rope_pattern": [i % 2 == 1 for i in range(s.n_layers)],
    }


def minicpm3_keys(s):
    """Of heads no more is said than the width of keys; values are as wide as heads that divide the stream."""
    return {
        "attention.head_count_kv": s.n_heads,
        "attention.key_length": s.head_dim + s.n_rot,
        "attention.q_lora_rank": 40,
        "attention.kv_lora_rank": s.rank,
        "rope.dimension_count": s.n_rot,
    }


def granitemoe_keys(s):
    return granite_keys(s) | moe_keys(s) | {"expert_shared_feed_forward_length": s.n_ff + 32}


def qwen2moe_keys(s):
    return moe_keys(s) | {
        "rope.freq_base": 1e6,
        "expert_feed_forward_length": s.n_ff - 32,
        "expert_shared_feed_forward_length": s.n_ff,
    }


def yarn(s):
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": s.context // 8,
    }


def longrope_factors(s):
    return t.weights(rope_factors_long=(s.head_dim // 2,), rope_factors_short=(s.head_dim // 2,))


def longrope(s):
    return {
        "rope.scaling.attn_factor": 1.19,
        "rope.scaling.original_context_length": s.context // 2,
        "attention.sliding_window": 0,
        "rope.dimension_count": s.head_dim,
    }


def deepseek_keys(s):
    return moe_keys(s) | {
        "attention.head_count_kv": 1,
        "attention.key_length": s.rank + s.n_rot,
        "attention.value_length": s.rank,
        "attention.key_length_mla": s.head_dim + s.n_rot,
        "attention.value_length_mla": s.head_dim - 2,
        "attention.kv_lora_rank": s.rank,
        "rope.dimension_count": s.n_rot,
        "leading_dense_block_count": 1,
        "expert_feed_forward_length": s.n_ff - 32,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.0,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
    }


def deepseek2_keys(s):
    return deepseek_keys(s) | {"attention.q_lora_rank": 40}


def deepseek2_keys_of_2024(s):
    """Before the split of attn_kv_b: the sizes of heads stand under the names that are now the cache's."""
    keys = {key: value for key, value in deepseek2_keys(s).items() if not key.endswith("_mla")}
    heads = {"attention.head_count_kv": s.n_heads, "attention.value_length": s.head_dim - 2}
    return keys | heads | {"attention.key_length": s.head_dim + s.n_rot}


def deepseek3_keys(s):
    """The experts come in groups; an architecture that is computed with temperature has it in the last key."""
    grouped = {"expert_group_count": s.n_groups, "expert_group_used_count": max(1, s.n_groups // 2)}
    routing = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
    return deepseek2_keys(s) | grouped | routing | yarn(s) | {"rope.scaling.yarn_log_multiplier": 0.1}


def grouped_experts(s):
    in_group = max(3, s.n_experts // s.n_groups)
    return replace(s, n_experts=s.n_groups * in_group, n_used=min(s.n_used, in_group * max(1, s.n_groups // 2)))


def lone_layers(s):
    """Mamba alone has no feed-forward part."""
    return {"feed_forward_length": 0, "attention.head_count": 0}


def falcon_mamba_keys(s):
    return lone_layers(s) | t.ssm_keys(s, groups=False) | {"ssm.dt_b_c_rms": True}


def mamba_keys(s):
    return lone_layers(s) | t.ssm_keys(s, groups=False) | {"ssm.dt_b_c_rms": False}


def mamba2_keys(s):
    return lone_layers(s) | t.ssm_keys(s)


def jamba_keys(s):
    return of.hybrid_kv_heads(s) | t.ssm_keys(s, groups=False) | moe_keys(s)


def granitehybrid_keys(s):
    return granitemoe_keys(s) | of.hybrid_kv_heads(s) | t.ssm_keys(s) | {"rope.scaling.finetuned": False}


def lfm2_keys(s):
    return of.hybrid_kv_heads(s) | {"shortconv.l_cache": s.d_conv, "rope.freq_base": 1e6}


def falcon_h1_keys(s):
    return t.ssm_keys(s) | {"rope.freq_base": 1e5}


def positions(s):
    return {"position_embd.weight": (s.context, s.n_embd)}


def bert_tensors(s):
    shapes = positions(s) | {"token_types.weight": (2, s.n_embd)}
    return shapes | t.norms(s, "token_embd_norm", bias=True)
