"""Recipes of MiniMax-01: lightning attention, and in some layers softmax attention."""

from dataclasses import replace

from . import recipes as r
from . import shape as t
from .layers import attends
from .recipes import Recipe


def layer(attention):
    def of(s, i):
        shapes = t.norms(s, "attn_norm", "ffn_norm") | t.output(s) | t.experts(s)
        if attention(i):
            return shapes | t.qkv(s)
        inner = s.q_dim
        return shapes | t.weights(attn_qkv=(3 * inner, s.n_embd), attn_gate=(inner, s.n_embd), attn_norm_2=(inner,))

    return of


def keys(s):
    return r.moe_keys(s) | {"rope.freq_base": 1e4, "rope.dimension_count": s.n_rot, "residual_scale": 3.5565588}


def mixed_keys(s):
    return keys(s) | {"attention.recurrent_layers": [not attends(i) for i in range(s.n_layers)]}


def eight_layers(s):
    """The last of which has softmax attention, if metadata don't say."""
    return replace(s, n_layers=8)


RECIPES = {
    "minimax-01": Recipe("minimax-01", layer(lambda i: i == 7), keys, head_size=True, adapt=eight_layers),
    "minimax-01-mixed": Recipe("minimax-01", layer(attends), mixed_keys, head_size=True),
}
