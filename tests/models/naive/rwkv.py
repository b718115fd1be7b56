"""RWKV-7: a matrix per head that decays, corrects itself and learns, and mixing with the token before.

Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution", 2025, and its author's package for the constants.
"""

import math

import numpy as np

from .attention import split_heads
from .parts import centred, layer_norm, sigmoid

GROUP_EPSILON = 64e-5


def shifted(x, shares):
    """Between each token and the one before, of which the first token has zeros."""
    before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    return x + (before - x) * shares


def time_mix(layer, h, first):
    """What the stream gets, and the values of the first layer, which later ones mix with their own."""
    shares = layer["time_mix_lerp_fused.weight"].reshape(6, -1)
    for_r, for_w, for_k, for_v, for_a, for_g = (shifted(h, share) for share in shares)

    def low_rank(name, x, bend=lambda y: y):
        return layer.linear(f"time_mix_{name}2", bend(layer.linear(f"time_mix_{name}1", x)))

    def of(name):
        return layer[f"time_mix_{name}.weight"].reshape(-1)

    width = layer.get("wkv.head_size")
    r, k, v = (layer.linear(f"time_mix_{name}", x) for name, x in (
        ("receptance", for_r), ("key", for_k), ("value", for_v)
    ))  # fmt: skip
    w = np.exp(-math.exp(-0.5) * sigmoid(of("w0") + low_rank("w", for_w, np.tanh)))
    a = sigmoid(of("a0") + low_rank("a", for_a))
    if first is not None:
        v = v + (first - v) * sigmoid(of("v0") + low_rank("v", for_v))
    removed = split_heads(k * of("k_k"), width)
    removed = removed / np.sqrt(np.square(removed).sum(-1, keepdims=True))
    k = k * (1 + (a - 1) * of("k_a"))
    heads = [split_heads(x, width) for x in (r, w, k, v, a)]
    y = evolved(*heads, removed)
    y = centred(y, *(layer[f"time_mix_ln.{part}"].reshape(-1, width) for part in ("weight", "bias")), GROUP_EPSILON)
    bonus = (heads[0] * heads[2] * of("r_k").reshape(-1, width)).sum(-1, keepdims=True) * heads[3]
    y = (y + bonus).reshape(h.shape) * low_rank("g", for_g, sigmoid)
    return layer.linear("time_mix_output", y), v if first is None else first


def evolved(r, w, k, v, a, removed):
    """Of [tokens, heads, width] each: S = S diag(w) - (S removed) (removed a)^T + v k^T, y = S r."""
    state, out = np.zeros((*v.shape[1:], v.shape[-1])), np.empty_like(v)
    for t in range(len(v)):
        seen = np.einsum("hvk,hk->hv", state, removed[t])
        state = state * w[t][:, None, :]
        state = state - np.einsum("hv,hk->hvk", seen, removed[t] * a[t]) + np.einsum("hv,hk->hvk", v[t], k[t])
        out[t] = np.einsum("hvk,hk->hv", state, r[t])
    return out


def channel_mix(layer, h):
    hidden = layer.linear("channel_mix_key", shifted(h, layer["channel_mix_lerp_k.weight"].reshape(-1)))
    return layer.linear("channel_mix_value", np.square(np.maximum(hidden, 0)))


def logits(file, tokens):
    x, first = layer_norm(file, "token_embd_norm", file.w["token_embd.weight"][tokens]), None
    for layer in file.layers():
        y, first = time_mix(layer, layer_norm(file, f"blk.{layer.i}.attn_norm", x), first)
        x = x + y
        x = x + channel_mix(layer, layer_norm(file, f"blk.{layer.i}.attn_norm_2", x))
    return file.linear("output", layer_norm(file, "output_norm", x))


WHOLE = {"rwkv7": logits}
