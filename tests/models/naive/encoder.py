"""Encoders: every token sees every other, norms follow the parts (Devlin et al. 2018; Nussbaum et al. 2024)."""

import numpy as np

from .attention import attend, project
from .experts import gated, plain
from .parts import gelu_erf, layer_norm, silu
from .rotary import HALVES, plain_frequencies, rotate


def bert(file, tokens):
    """Hidden states before any pooling. Positions are learned."""
    x = embed(file, tokens) + file.w["position_embd.weight"][: len(tokens)]
    return encode(file, x, rotated=False, ffn=plain(gelu_erf))


def nomic_bert(file, tokens):
    """As bert, with rotary positions and a gate."""
    return encode(file, embed(file, tokens), rotated=True, ffn=gated(silu))


def embed(file, tokens):
    """Tokens, and the type of a first sentence."""
    return file.w["token_embd.weight"][tokens] + file.w["token_types.weight"][0]


def encode(file, x, rotated, ffn):
    x = layer_norm(file, "token_embd_norm", x)
    for layer in file.layers():
        x = normed(layer, "attn_output_norm", x + self_attention(layer, x, rotated))
        x = normed(layer, "layer_output_norm", x + ffn(layer, x))
    return x


def self_attention(layer, h, rotated):
    q, k, v = project(layer, h)
    if rotated:
        angles = np.outer(np.arange(len(h)), plain_frequencies(layer.k_dim, layer.get("rope.freq_base", 10000.0)))
        q, k = rotate(q, angles, 1.0, HALVES), rotate(k, angles, 1.0, HALVES)
    everything = np.zeros((len(h), len(h)), bool)
    return layer.linear("attn_output", attend(q, k, v, layer.k_dim**-0.5, hidden=everything))


def normed(layer, name, x):
    return layer_norm(layer.file, f"blk.{layer.i}.{name}", x)


ENCODERS = {"bert": bert, "nomic-bert": nomic_bert}
