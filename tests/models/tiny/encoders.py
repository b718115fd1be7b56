"""Recipes of encoders that are no BERT of old."""

from dataclasses import replace

from . import layers as of
from . import recipes as r
from . import shape as t
from .recipes import Recipe
from .relatives import nomic_tensors


def sum_norms(s):
    return t.norms(s, "attn_output_norm", "layer_output_norm", bias=True)


def jina3_layer(s, i):
    return sum_norms(s) | t.fused_qkv(s, bias=True) | t.output(s, bias=True) | t.plain(s)


def nomic_moe_layer(s, i):
    """Experts without gates in every second layer."""
    if i % 2 == 0:
        return jina3_layer(s, i)
    shapes = sum_norms(s) | t.fused_qkv(s, bias=True) | t.output(s, bias=True) | t.experts(s)
    return {name: dims for name, dims in shapes.items() if name != "ffn_gate_exps.weight"}


def nomic_moe_keys(s):
    return r.moe_keys(s) | {"rope.freq_base": 1e4, "attention.causal": False, "moe_every_n_layers": 2}


def jina2_layer(s, i):
    shapes = sum_norms(s) | t.qkv(s, bias=True) | t.output(s, bias=True) | t.gate_in_up(s)
    return shapes | t.biases(ffn_down=(s.n_embd,))


def modern_layer(s, i):
    """The first layer's input is normalised already."""
    norms = ("attn_norm", "ffn_norm") if i else ("ffn_norm",)
    return t.norms(s, *norms) | t.fused_qkv(s) | t.output(s) | t.gate_in_up(s)


def modern_keys(s):
    return r.window(s) | {
        "attention.causal": False,
        "attention.sliding_window_pattern": 3,
        "hidden_activation": "gelu",
        "rope.freq_base": 1.6e5,
        "rope.freq_base_swa": 1e4,
    }


ENCODER = Recipe(
    "jina-bert-v3",
    jina3_layer,
    lambda s: {"rope.freq_base": 2e4, "attention.causal": False},
    rms=False,
    tied=True,
    final_norm="",
    extra=nomic_tensors,
    kv_heads="no key",
)
MODERN = replace(
    ENCODER,
    arch="modern-bert",
    layer=modern_layer,
    keys=modern_keys,
    final_norm="output_norm",
    extra=lambda s: t.norms(s, "token_embd_norm"),
)
EURO = Recipe("eurobert", of.llama_layer, lambda s: {"attention.causal": False}, tied=True, head_size=True)

RECIPES = {
    "jina-bert-v3": ENCODER,
    "jina-bert-v2": replace(
        ENCODER, arch="jina-bert-v2", layer=jina2_layer, keys=lambda s: {"attention.causal": False}
    ),
    "nomic-bert-moe": replace(ENCODER, arch="nomic-bert-moe", layer=nomic_moe_layer, keys=nomic_moe_keys),
    "modern-bert": MODERN,
    "modern-bert-silu": replace(MODERN, keys=lambda s: modern_keys(s) | {"hidden_activation": "silu"}),
    "eurobert": EURO,
    "llama-embed": replace(EURO, arch="llama-embed", keys=lambda s: {"rope.dimension_count": s.n_rot}),
}  # fmt: skip
