"""Attention over chosen keys: DeepSeek-V3.2's lightning indexer (2025), GLM-5's, whose layers may share a choice, and
MiniMax-M3's (2026), of blocks of keys.

From the first's paper, section 2.1, and the modelling files of Hugging Face transformers. What isn't chosen is hidden.
"""

import numpy as np

from . import attention
from .attention import attend, hidden_past, norm_each_head, project, split_heads
from .dense import Arch, norm
from .experts import SIGMOID, experts, gpt_oss_expert, top
from .latent import latent_attention, turn
from .parts import centred, rms_norm, sigmoid
from .rotary import HALVES, PAIRS


def indexed_layer(pairing):
    """``pairing``: of the index."""

    def layer_of(arch, layer, x, options):
        h = norm(arch, layer, "attn_norm", x)
        if layer.get("attention.indexer.types", [True] * (layer.i + 1))[layer.i]:
            layer.file.hidden = hidden_keys(arch, layer, h, options, pairing)
        x = x + latent_attention(arch, layer, h, options, layer.file.hidden)
        return x + arch.ffn(layer, norm(arch, layer, "ffn_norm", x))

    return layer_of


def hidden_keys(arch, layer, h, options, pairing):
    """True where token i must not see token j: I(i, j) = sum over heads of w(i) relu(q(i) k(j)) is none of the best."""
    width, heads = layer.get("attention.indexer.key_length"), layer.get("attention.indexer.head_count")
    latent = norm(arch, layer, "attn_q_a_norm", layer.linear("attn_q_a", h))
    q = split_heads(layer.linear("indexer.attn_q_b", latent), width)
    k = layer.linear("indexer.attn_k", h)
    k = centred(k, layer["indexer.k_norm.weight"], layer["indexer.k_norm.bias"], 1e-6)[:, None]
    q, k = (turn_first(layer, x, options, pairing) for x in (q, k))
    scores = np.maximum(np.einsum("ihd,jd->hij", q, k[:, 0]) / np.sqrt(width), 0)
    scores = np.einsum("ih,hij->ij", layer.linear("indexer.proj", h) / np.sqrt(heads), scores)
    future = hidden_past(len(h), 0)
    return future | ~top(np.where(future, -np.inf, scores), layer.get("attention.indexer.top_k"))


def turn_first(layer, x, options, pairing):
    n_rot = layer.get("rope.dimension_count")
    return np.concatenate([turn(layer, x[..., :n_rot], options, pairing), x[..., n_rot:]], axis=-1)


def indexed(pairing):
    return Arch(indexed_layer(pairing), norm=rms_norm, ffn=experts(normalise=False, gating=SIGMOID))


def minimax_layer(arch, layer, x, options):
    h = norm(arch, layer, "attn_norm", x)
    q, k, v = project(layer, h)
    q, k = (norm_and_turn(layer, name, y, options) for name, y in (("attn_q_norm", q), ("attn_k_norm", k)))
    hidden = hidden_blocks(layer, h, options) if "indexer.k_proj.weight" in layer else hidden_past(len(h), 0)
    x = x + layer.linear("attn_output", attend(q, k, v, layer.k_dim**-0.5, hidden=hidden))
    return x + arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


def norm_and_turn(layer, name, x, options):
    return attention.turn(layer, norm_each_head(layer, name, x), HALVES, options, None)


def hidden_blocks(layer, h, options):
    """By head of queries, [heads, i, j]: a block of keys is as good as its best key, for each head of keys."""
    size, n_local = layer.get("attention.indexer.block_size"), layer.get("attention.indexer.local_blocks", 1)
    width = layer.get("attention.indexer.key_length")
    q = norm_and_turn(layer, "indexer.q_norm", split_heads(layer.linear("indexer.q_proj", h), width), options)
    k = norm_and_turn(layer, "indexer.k_norm", layer.linear("indexer.k_proj", h)[:, None], options)
    future = hidden_past(len(h), 0)
    scores = np.where(future, -np.inf, np.einsum("ihd,jd->hij", q, k[:, 0]))
    n_blocks, own = -(-len(h) // size), np.arange(len(h)) // size
    blocks = np.stack([scores[..., b * size : (b + 1) * size].max(-1) for b in range(n_blocks)], axis=-1)
    behind = own[:, None] - np.arange(n_blocks)
    blocks[:, (behind >= 0) & (behind < n_local)] = np.inf
    chosen = np.stack([top(of_head, layer.get("attention.indexer.top_k")) for of_head in blocks])
    hidden = future | ~np.repeat(chosen, size, axis=-1)[..., : len(h)]
    return np.repeat(hidden, layer.heads // len(hidden), axis=0)


def clamped(layer, h, suffix=""):
    """gpt-oss's activation, which bounds what it gets, in networks that are no experts."""
    gate = np.minimum(layer.linear("ffn_gate" + suffix, h), 7.0)
    up = np.clip(layer.linear("ffn_up" + suffix, h), -7.0, 7.0)
    return layer.linear("ffn_down" + suffix, gate * sigmoid(1.702 * gate) * (up + 1))


MINIMAX = Arch(
    minimax_layer,
    norm=rms_norm,
    ffn=experts(
        normalise=True,
        gating=SIGMOID,
        expert=gpt_oss_expert,
        dense=clamped,
        shared=lambda layer, h: clamped(layer, h, "_shexp"),
    ),
)

ARCHS = {"deepseek32": indexed(HALVES), "glm-dsa": indexed(PAIRS), "minimax-m3": MINIMAX}
