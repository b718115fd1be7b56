"""Recipes of T5 and its relatives, whose layers are an encoder's and a decoder's."""

from dataclasses import replace

from . import shape as t
from .recipes import Recipe

N_BUCKETS = 32


def attention(s, name):
    rows = {"q": s.q_dim, "k": s.q_dim, "v": s.q_dim}
    shapes = {f"{name}_{part}": (n, s.n_embd) for part, n in rows.items()}
    return t.weights(**shapes, **{f"{name}_o": (s.n_embd, s.q_dim)})


def layer(s, *, gated, cross=False):
    shapes = t.norms(s, "attn_norm", "ffn_norm") | attention(s, "attn")
    shapes |= t.gated(s) if gated else t.plain(s, bias=False)
    return shapes | t.norms(s, "cross_attn_norm") | attention(s, "cross_attn") if cross else shapes


def stack(s, part, n, *, gated, each_biased, cross=False):
    """A part's layers and its last norm; where not each layer has biases of its own, the first has them."""
    shapes = t.norms(s, f"{part}.output_norm")
    for i in range(n):
        own = t.weights(attn_rel_b=(N_BUCKETS, s.n_heads)) if each_biased or not i else {}
        shapes |= {f"{part}.blk.{i}.{name}": dims for name, dims in (layer(s, gated=gated, cross=cross) | own).items()}
    return shapes


def encoder(gated=True, each_biased=False):
    return lambda s: stack(s, "enc", s.n_layers, gated=gated, each_biased=each_biased)


def keys(s):
    return {"attention.relative_buckets_count": N_BUCKETS, "attention.layer_norm_epsilon": 1e-5}


ENCODER = Recipe(
    "t5encoder",
    lambda s, i: {},
    keys,
    tied=True,
    final_norm="",
    extra=encoder(),
    head_size=True,
    kv_heads="no key",
    gains={"attn_q": 0.3, "cross_attn_q": 0.3},
)

RECIPES = {
    "t5encoder": ENCODER,
    "t5encoder-relu": replace(ENCODER, extra=encoder(gated=False)),
    "t5encoder-umt5": replace(ENCODER, extra=encoder(each_biased=True)),
}
