"""Gemma 4 (Google, 2026), from transformers' modelling file; llama.cpp's converter for names."""

import math

import numpy as np

from .attention import attend, hidden_past, split_heads
from .dense import Arch, capped, windowed
from .experts import expert_linear, gate_and_up, gated, routing
from .parts import gelu_tanh, rms
from .rotary import HALVES, plain_frequencies, rotate

ffn = gated(gelu_tanh)


def norm(layer, name, x):
    return rms(x, layer[name + ".weight"], layer.get("attention.layer_norm_rms_epsilon"))


def embeddings_of_layers(file, tokens, x):
    """[tokens, layers, width]: of a table, and of the embeddings; none in models without."""
    width = file.get("embedding_length_per_layer_input", 0)
    if not width:
        return None
    eps = file.get("attention.layer_norm_rms_epsilon")
    own = file.w["per_layer_token_embd.weight"][tokens].reshape(len(tokens), -1, width)
    projected = file.linear("per_layer_model_proj", x).reshape(own.shape) / math.sqrt(file.n_embd)
    return (rms(projected, file.w["per_layer_proj_norm.weight"], eps) + math.sqrt(width) * own) / math.sqrt(2)


def turned(layer, x, local):
    """Layers with a window have a base of their own; of the others' pairs a part turns, by factors of the file."""
    if local:
        frequencies = plain_frequencies(
            layer.get("rope.dimension_count_swa", x.shape[-1]), layer.get("rope.freq_base_swa", 10000.0)
        )
    else:
        frequencies = plain_frequencies(layer.get("rope.dimension_count", x.shape[-1]), layer.get("rope.freq_base"))
        frequencies = frequencies / layer.file.w.get("rope_freqs.weight", 1.0)
    return rotate(x, np.outer(np.arange(len(x)), frequencies), 1.0, HALVES)


def attention(layer, h, local, seen):
    """``seen``: keys and values of the last layer of each kind that has some, which the last layers have not."""
    dim = layer.get("attention.key_length_swa", layer.k_dim) if local else layer.k_dim
    q = turned(layer, norm(layer, "attn_q_norm", split_heads(layer.linear("attn_q", h), dim)), local)
    if layer.i < layer.file.n_layers - layer.get("attention.shared_kv_layers", 0):
        k = split_heads(layer.linear("attn_k", h), dim)
        v = split_heads(layer.linear("attn_v", h), dim) if "attn_v.weight" in layer else k
        v = rms(v, 1.0, layer.get("attention.layer_norm_rms_epsilon"))
        seen[local] = turned(layer, norm(layer, "attn_k_norm", k), local), v
    k, v = seen[local]
    hidden = hidden_past(len(h), layer.get("attention.sliding_window") if local else 0)
    return layer.linear("attn_output", attend(q, k, v, 1.0, hidden=hidden))


def feed_forward(layer, x):
    """A network, beside it in sparse layers experts, which see the stream through other norms."""
    f = ffn(layer, norm(layer, "ffn_norm", x))
    if "ffn_gate_inp.weight" not in layer:
        return f
    eps = layer.get("attention.layer_norm_rms_epsilon")
    seen = rms(x, layer["ffn_gate_inp.scale"], eps) / math.sqrt(layer.file.n_embd)
    weights = routing(layer, layer.linear("ffn_gate_inp", seen), 1, True) * layer["ffn_down_exps.scale"]
    h, y = norm(layer, "pre_ffw_norm_2", x), np.zeros_like(x)
    for e in range(weights.shape[1]):
        gate, up = gate_and_up(layer, e, h)
        y += weights[:, e : e + 1] * expert_linear(layer, "ffn_down_exps", e, gelu_tanh(gate) * up)
    return norm(layer, "post_ffw_norm_1", f) + norm(layer, "post_ffw_norm_2", y)


def decode(file, tokens):
    x = math.sqrt(file.n_embd) * file.w["token_embd.weight"][tokens]
    of_layers, seen = embeddings_of_layers(file, tokens, x), {}
    for layer in file.layers():
        local = windowed(PATTERN, layer)
        h = attention(layer, norm(layer, "attn_norm", x), local, seen)
        x = x + norm(layer, "post_attention_norm", h)
        x = x + norm(layer, "post_ffw_norm", feed_forward(layer, x))
        if of_layers is not None:
            p = gelu_tanh(layer.linear("inp_gate", x)) * of_layers[:, layer.i]
            x = x + norm(layer, "post_norm", layer.linear("proj", p))
        if "layer_output_scale.weight" in layer:
            x = x * layer["layer_output_scale.weight"]
    h = rms(x, file.w["output_norm.weight"], file.get("attention.layer_norm_rms_epsilon"))
    return capped(0.0)(file, file.linear("token_embd", h))


PATTERN = Arch(None, window_every=6)
WHOLE = {"gemma4": decode}
