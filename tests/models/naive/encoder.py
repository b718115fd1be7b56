"""Encoders: every token sees every other.

Devlin et al. 2018; Nussbaum et al. 2024 and 2025; Guenther et al. 2023; Sturua et al. 2024; Warner et al. 2024; Boizard
et al. 2025.
"""

import numpy as np

from .attention import alibi_slopes, attend, project
from .experts import expert_linear, experts, gated, plain
from .parts import gelu_erf, layer_norm, rms_norm, silu
from .rotary import HALVES, PAIRS, plain_frequencies, rotate


def bert(file, tokens):
    """Hidden states before any pooling."""
    x = layer_norm(file, "token_embd_norm", embed(file, tokens))
    for layer in file.layers():
        x = normed(layer, "attn_output_norm", x + self_attention(layer, x))
        x = normed(layer, "layer_output_norm", x + plain(gelu_erf)(layer, x))
    return x


def rotated(ffn):
    """Rotation in place of learned positions, and another feed-forward part."""

    def encode(file, tokens):
        x = layer_norm(file, "token_embd_norm", embed(file, tokens))
        for layer in file.layers():
            x = normed(layer, "attn_output_norm", x + self_attention(layer, x, turned))
            x = normed(layer, "layer_output_norm", x + ffn(layer, x))
        return x

    return encode


def gelu_expert(layer, e, h):
    """Nomic's have no gate."""
    return expert_linear(layer, "ffn_down_exps", e, gelu_erf(expert_linear(layer, "ffn_up_exps", e, h)))


nomic_moe = experts(normalise=False, expert=gelu_expert, dense=plain(gelu_erf))


def jina2(file, tokens):
    """Scores fall with distance, to both sides (Press et al. 2021; Guenther et al. 2023)."""
    x = layer_norm(file, "token_embd_norm", embed(file, tokens))
    for layer in file.layers():
        x = normed(layer, "attn_output_norm", x + self_attention(layer, x, slopes=alibi_slopes(layer.heads)))
        x = normed(layer, "layer_output_norm", x + gated(gelu_erf)(layer, x))
    return x


def modern(file, tokens):
    """Norms before the parts, none in the first layer's attention; all but each third layer, from the second on, see
    half a window to each side, with a rotary base of their own."""
    x = layer_norm(file, "token_embd_norm", file.w["token_embd.weight"][tokens])
    ffn = gated(silu if file.get("hidden_activation", "gelu") == "silu" else gelu_erf)
    distance = abs(np.arange(len(x))[:, None] - np.arange(len(x)))
    for layer in file.layers():
        local = layer.i % layer.get("attention.sliding_window_pattern", 3) > 0
        base = layer.get("rope.freq_base_swa", 10000.0) if local else layer.get("rope.freq_base")
        hidden = distance > (layer.get("attention.sliding_window") // 2 if local else len(x))
        h = normed(layer, "attn_norm", x) if layer.i else x
        q, k, v = project(layer, h)
        q, k = turned(layer, q, base), turned(layer, k, base)
        x = x + layer.linear("attn_output", attend(q, k, v, layer.k_dim**-0.5, hidden=hidden))
        x = x + ffn(layer, normed(layer, "ffn_norm", x))
    return layer_norm(file, "output_norm", x)


def llama_both_ways(pairing):
    def encode(file, tokens):
        x = file.w["token_embd.weight"][tokens]
        for layer in file.layers():
            h = rms_norm(file, f"blk.{layer.i}.attn_norm", x)
            x = x + self_attention(layer, h, lambda layer, y: turned(layer, y, pairing=pairing))
            x = x + gated(silu)(layer, rms_norm(file, f"blk.{layer.i}.ffn_norm", x))
        return rms_norm(file, "output_norm", x)

    return encode


def turned(layer, x, base=None, pairing=HALVES):
    base = base or layer.get("rope.freq_base", 10000.0)
    angles = np.outer(np.arange(len(x)), plain_frequencies(layer.get("rope.dimension_count", layer.k_dim), base))
    return rotate(x, angles, 1.0, pairing)


def embed(file, tokens):
    """Tokens, their positions where these are learned, and the types of a first and a second sentence."""
    x = file.w["token_embd.weight"][tokens] + file.w["token_types.weight"][second_text(file, tokens)]
    return x + file.w["position_embd.weight"][: len(tokens)] if "position_embd.weight" in file.w else x


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


def self_attention(layer, h, position=lambda layer, x: x, slopes=None):
    q, k, v = project(layer, h)
    q, k = position(layer, q), position(layer, k)
    everything = np.zeros((len(h), len(h)), bool)
    return layer.linear("attn_output", attend(q, k, v, layer.k_dim**-0.5, hidden=everything, slopes=slopes))


def normed(layer, name, x):
    return layer_norm(layer.file, f"blk.{layer.i}.{name}", x)


ENCODERS = {
    "bert": bert,
    "nomic-bert": rotated(gated(silu)),
    "nomic-bert-moe": rotated(nomic_moe),
    "jina-bert-v2": jina2,
    "jina-bert-v3": rotated(plain(gelu_erf)),
    "modern-bert": modern,
    "eurobert": llama_both_ways(HALVES),
    "llama-embed": llama_both_ways(PAIRS),
}
