"""MiniMax-01: a matrix per head that fades and learns keys and values, in most layers instead of attention.

MiniMax, "MiniMax-01: Scaling Foundation Models with Lightning Attention", 2025; its authors' code for the slopes.
"""

from dataclasses import replace

import numpy as np

from . import dense
from .attention import split_heads
from .dense import QWEN, norm
from .experts import experts
from .parts import rms, sigmoid, silu


def slopes(layer):
    base = 1 / 2 ** (8 / layer.heads)
    of_layer = 1 - layer.i / (layer.file.n_layers - 1 + 1e-5) + 1e-5
    return base ** (np.arange(layer.heads) + 1) * of_layer


def lightning(layer, h):
    """Each head's query, key and value stand together in the rows of one matrix."""
    qkv = split_heads(silu(layer.linear("attn_qkv", h)), 3 * layer.k_dim)
    q, k, v = np.split(qkv, 3, axis=-1)
    state, out, decay = np.zeros((layer.heads, layer.k_dim, layer.k_dim)), np.empty_like(v), np.exp(-slopes(layer))
    for t in range(len(v)):
        state = decay[:, None, None] * state + np.einsum("hk,hv->hkv", k[t], v[t])
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    y = rms(out.reshape(len(h), -1), layer["attn_norm_2.weight"], 1e-6)
    return layer.linear("attn_output", sigmoid(layer.linear("attn_gate", h)) * y)


def minimax_layer(arch, layer, x, options):
    """What a branch adds is added to its scaled input, not to the stream before the norm."""
    scale = layer.get("residual_scale")
    h = norm(arch, layer, "attn_norm", x)
    whole = "attn_qkv.weight" not in layer
    x = scale * h + (dense.self_attention(arch, layer, h, options) if whole else lightning(layer, h))
    h = norm(arch, layer, "ffn_norm", x)
    return scale * h + arch.ffn(layer, h)


ARCHS = {"minimax-01": replace(QWEN, layer=minimax_layer, ffn=experts(normalise=True))}
