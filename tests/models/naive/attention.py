"""Attention: projections, norms of heads, which past a token sees, and how scores are bent."""

import math

import numpy as np

from . import rotary
from .parts import centred, rms, softcap


def split_heads(y, dim):
    return y.reshape(len(y), -1, dim)


def project(layer, h):
    """Queries, keys and values [tokens, heads, dim]; a fused matrix holds all queries, then all keys, then all values.

    ``attention.clamp_kqv`` bounds all three (OLMo, DBRX).
    """
    if "attn_qkv.weight" in layer:
        nq, nk = layer.heads * layer.k_dim, layer.kv_heads * layer.k_dim
        q, k, v = np.split(layer.linear("attn_qkv", h), [nq, nq + nk], axis=1)
    else:
        q, k, v = (layer.linear(name, h) for name in ("attn_q", "attn_k", "attn_v"))
    limit = layer.get("attention.clamp_kqv", 0.0) or math.inf
    q, k, v = (np.clip(y, -limit, limit) for y in (q, k, v))
    return split_heads(q, layer.k_dim), split_heads(k, layer.k_dim), split_heads(v, layer.v_dim)


def norm_each_head(layer, name, x):
    """RMS over a head, one weight for all heads (Qwen 3, Gemma 3, LFM 2)."""
    return rms(x, layer[name + ".weight"], layer.get("attention.layer_norm_rms_epsilon"))


def norm_projection(layer, name, x):
    """RMS over all heads together (OLMo 2)."""
    flat = rms(x.reshape(len(x), -1), layer[name + ".weight"], layer.get("attention.layer_norm_rms_epsilon"))
    return flat.reshape(x.shape)


def layer_norm_each_head(layer, name, x):
    """LayerNorm over a head, every head its own weight, where the file has one (StableLM 2 12B, Command R+)."""
    if name + ".weight" not in layer:
        return x
    return centred(x, layer[name + ".weight"], 0.0, layer.get("attention.layer_norm_epsilon"))


def hidden_past(n, window):
    """True where token i must not see token j: the future, and what lies ``window`` or more behind."""
    i, j = np.arange(n)[:, None], np.arange(n)
    return (j > i) | (bool(window) & (i - j >= window))


def alibi_slopes(n_heads, max_bias=8.0):
    """Press et al. 2021: a geometric series; beyond the largest power of two, the odd terms of one twice as dense."""
    n = 2 ** math.floor(math.log2(n_heads))
    dense = [2 ** (-max_bias * (k + 1) / n) for k in range(n)]
    between = [2 ** (-max_bias * (2 * k + 1) / (2 * n)) for k in range(n_heads - n)]
    return np.array(dense + between)


def probabilities(scores, sinks):
    """Softmax over the past; a sink is one more score per head that takes its share and gives nothing (gpt-oss)."""
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, column], axis=-1)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p if sinks is None else p[..., :-1]


def attend(q, k, v, scale, *, hidden, cap=0.0, slopes=None, sinks=None):
    """Heads joined, [tokens, heads * dim]. Query heads share keys and values in groups of neighbours."""
    n, heads, _ = q.shape
    k, v = (np.repeat(a, heads // a.shape[1], axis=1) for a in (k, v))
    scores = softcap(scale * np.einsum("ihd,jhd->hij", q, k), cap)
    if slopes is not None:
        scores = scores - slopes[:, None, None] * abs(np.arange(n)[:, None] - np.arange(n))
    p = probabilities(np.where(hidden, -np.inf, scores), sinks)
    return np.einsum("hij,jhd->ihd", p, v).reshape(n, -1)


def turn(layer, x, pairing, options, local, n_rot=None):
    """Rotary positions 0, 1, 2 ... of a layer; ``local``: base of those that no scaling touches."""
    n_rot = options.n_rot or n_rot or layer.get("rope.dimension_count", layer.k_dim)
    if local is not None:
        n_rot = layer.get("rope.dimension_count_swa", n_rot)
        return rotary.rotate(x, np.outer(np.arange(len(x)), rotary.plain_frequencies(n_rot, local)), 1.0, pairing)
    frequencies = options.frequencies
    if options.factors is not None:
        frequencies = rotary.plain_frequencies(n_rot, layer.get("rope.freq_base", 10000.0)) / options.factors
    if frequencies is None:
        frequencies = rotary.global_frequencies(layer.file, n_rot, options.context_size)
    magnitude = rotary.magnitude(layer.file) if options.magnitude is None else options.magnitude
    return rotary.rotate(x, np.outer(np.arange(len(x)), frequencies), magnitude, pairing)
