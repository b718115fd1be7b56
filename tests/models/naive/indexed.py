"""Attention over chosen keys: DeepSeek-V3.2's lightning indexer (2025), and GLM-5's, whose layers may share a choice.

From the paper, section 2.1, and the modelling files of Hugging Face transformers. What isn't chosen is hidden.
"""

import numpy as np

from .attention import hidden_past, split_heads
from .dense import Arch, norm
from .experts import SIGMOID, experts, top
from .latent import latent_attention, turn
from .parts import centred, rms_norm
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


ARCHS = {"deepseek32": indexed(HALVES), "glm-dsa": indexed(PAIRS)}
