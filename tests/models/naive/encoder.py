"""Encoders: every token sees every other, norms follow the sums (Devlin et al. 2018; Nussbaum et al. 2024)."""

import numpy as np

from .attention import attend, project
from .experts import gated, plain
from .parts import gelu_erf, layer_norm, silu
from .rotary import HALVES, plain_frequencies, rotate


def bert(file, tokens):
    """Hidden states before any pooling."""
    x = layer_norm(file, "token_embd_norm", embed(file, tokens))
    for layer in file.layers():
        x = normed(layer, "attn_output_norm", x + self_attention(layer, x))
        x = normed(layer, "layer_output_norm", x + plain(gelu_erf)(layer, x))
    return x


def nomic(file, tokens):
    """Rotation in place of learned positions, a gated network in place of GELU (Nussbaum et al. 2024)."""
    x = file.w["token_embd.weight"][tokens] + file.w["token_types.weight"][second_text(file, tokens)]
    x = layer_norm(file, "token_embd_norm", x)
    for layer in file.layers():
        x = normed(layer, "attn_output_norm", x + self_attention(layer, x, turned))
        x = normed(layer, "layer_output_norm", x + gated(silu)(layer, x))
    return x


def turned(layer, x):
    angles = np.outer(np.arange(len(x)), plain_frequencies(layer.k_dim, layer.get("rope.freq_base")))
    return rotate(x, angles, 1.0, HALVES)


def embed(file, tokens):
    """Tokens, their positions, and the types of a first and a second sentence."""
    positions, types = file.w["position_embd.weight"], file.w["token_types.weight"]
    return file.w["token_embd.weight"][tokens] + positions[: len(tokens)] + types[second_text(file, tokens)]


def second_text(file, tokens):
    """1 for the tokens of a pair's second text, which comes after a separator, in models that were trained on pairs."""
    pairs = file.w.keys() & {"cls.weight", "cls.output.weight"} and len(file.w["token_types.weight"]) > 1
    separator = file.separator if pairs else None
    first = list(tokens).index(separator) + 1 if separator in tokens else len(tokens)
    return [int(i >= first) for i in range(len(tokens))]


def classify(file, hidden):
    """Scores of each label: RoBERTa's head on the first token's hidden state (Liu et al. 2019)."""
    x = hidden[0]
    if "cls.weight" in file.w:
        x = np.tanh(file.linear("cls", x))
    return file.linear("cls.output", x) if "cls.output.weight" in file.w else x


def self_attention(layer, h, position=lambda layer, x: x):
    q, k, v = project(layer, h)
    q, k = position(layer, q), position(layer, k)
    everything = np.zeros((len(h), len(h)), bool)
    return layer.linear("attn_output", attend(q, k, v, layer.k_dim**-0.5, hidden=everything))


def normed(layer, name, x):
    return layer_norm(layer.file, f"blk.{layer.i}.{name}", x)


ENCODERS = {"bert": bert, "nomic-bert": nomic}
