"""Recipe of RWKV-7."""

from dataclasses import replace

from . import shape as t
from .recipes import Recipe

RANKS = {"w": 16, "a": 8, "v": 8, "g": 24}


def layer(s, i):
    n = s.n_embd
    shapes = t.norms(s, "attn_norm", "attn_norm_2", bias=True) | t.norms(s, "time_mix_ln", bias=True)
    for name in ("receptance", "key", "value", "output"):
        shapes |= t.weights(**{f"time_mix_{name}": (n, n)})
    for name, rank in RANKS.items():
        rank = RANKS["a"] if name == "v" and not i else rank  # the first layer's have no use
        shapes |= t.weights(**{f"time_mix_{name}1": (rank, n), f"time_mix_{name}2": (n, rank)})
    vectors = ("w0", "a0", "v0", "k_k", "k_a", "r_k")
    shapes |= t.weights(**{f"time_mix_{name}": (n,) for name in vectors}, time_mix_lerp_fused=(6, 1, 1, n))
    shapes |= t.weights(channel_mix_key=(s.n_ff, n), channel_mix_value=(n, s.n_ff), channel_mix_lerp_k=(n,))
    return shapes


def keys(s):
    return {
        "wkv.head_size": s.head_dim,
        "attention.head_count": 0,
        "attention.decay_lora_rank": RANKS["w"],
        "attention.iclr_lora_rank": RANKS["a"],
        "attention.value_residual_mix_lora_rank": RANKS["v"],
        "attention.gate_lora_rank": RANKS["g"],
    }


def whole_heads(s):
    return replace(s, n_embd=s.n_heads * s.head_dim)


RECIPES = {
    "rwkv7": Recipe(
        "rwkv7",
        layer,
        keys,
        rms=False,
        norm_bias=True,
        kv_heads="no key",
        extra=lambda s: t.norms(s, "token_embd_norm", bias=True),
        adapt=whole_heads,
    )
}
