"""Recipes of models whose attention chooses its keys."""

from dataclasses import replace

from . import layers as of
from . import recipes as r
from . import relatives as rel
from . import shape as t
from .recipes import Recipe

HEADS = 12  # of few, all may give a key nothing, and ties are no choice


def width(s):
    """Of the heads of an indexer: odd in tiny models, 128 as published in those of real sizes."""
    return s.n_rot + (7 if s.n_rot < 64 else 64)


def deepseek32_layer(s, i):
    index = t.weights(**{
        "indexer.attn_q_b": (HEADS * width(s), 40),
        "indexer.attn_k": (width(s), s.n_embd),
        "indexer.k_norm": (width(s),),
        "indexer.proj": (HEADS, s.n_embd),
    })  # fmt: skip
    return of.deepseek_layer(s, i, correction=True) | index | t.biases(**{"indexer.k_norm": (width(s),)})


def deepseek32_keys(s):
    index = {"head_count": HEADS, "key_length": width(s), "top_k": s.n_chosen}
    return r.deepseek3_keys(s) | {f"attention.indexer.{name}": value for name, value in index.items()}


def chooses(i):
    return i % 3 != 1


def glm_dsa_layer(s, i):
    shapes = deepseek32_layer(s, i)
    return shapes if chooses(i) else {name: dims for name, dims in shapes.items() if "indexer." not in name}


def glm_dsa_keys(s):
    """Without a word on the router, whose scores are sigmoids."""
    keys = {key: value for key, value in deepseek32_keys(s).items() if key != "expert_gating_func"}
    return keys | {"attention.indexer.types": [chooses(i) for i in range(s.n_layers)]}


def minimax_m3_layer(s, i):
    """Dense layers see everything."""
    shapes = rel.shared_moe(s, i, of.normed_attention, correction=True)
    index = {"q_proj": (s.n_kv_heads * width(s), s.n_embd), "k_proj": (width(s), s.n_embd)}
    index |= {f"{part}_norm": (width(s),) for part in "qk"}
    return shapes | (t.weights(**{f"indexer.{name}": dims for name, dims in index.items()}) if i else {})


def minimax_m3_keys(s):
    """Three blocks of keys, which are all that there are if that many may be chosen."""
    index = {"head_count": s.n_kv_heads, "key_length": width(s), "top_k": 3, "block_size": max(1, s.n_chosen // 2)}
    keys = rel.sigmoid_keys(s) | r.partial(s) | {f"attention.indexer.{name}": value for name, value in index.items()}
    return keys | {"attention.indexer.local_blocks": 1}


def panels(s):
    """Blocks as large as the panels that keys are stored in, of which the query's own needn't be one."""
    index = {"block_size": 16, "top_k": 2, "local_blocks": 0}
    return minimax_m3_keys(s) | {f"attention.indexer.{name}": value for name, value in index.items()}


MINIMAX_M3 = Recipe("minimax-m3", minimax_m3_layer, minimax_m3_keys, head_size=True)
RECIPES = {
    "deepseek32": Recipe("deepseek32", deepseek32_layer, deepseek32_keys, head_size=True, adapt=r.grouped_experts),
    "glm-dsa": Recipe("glm-dsa", glm_dsa_layer, glm_dsa_keys, head_size=True, adapt=r.grouped_experts),
    "minimax-m3": MINIMAX_M3,
    "minimax-m3-panels": replace(MINIMAX_M3, keys=panels),
}
