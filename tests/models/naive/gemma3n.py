"""Gemma 3n (Google, 2025; Baykal et al. 2023), from transformers' modelling file; llama.cpp's converter for names."""

import math

import numpy as np

from .dense import capped, windowed
from .gemma4 import PATTERN, attention, embeddings_of_layers, norm
from .parts import gelu_tanh, rms


def magnitude(x):
    return np.sqrt(np.square(x).mean(-1, keepdims=True))


def scaled_to(first, x):
    return x * magnitude(first) / np.maximum(magnitude(x), math.sqrt(1e-5))


def gates(layer, h):
    """Only what exceeds the mean by some standard deviations, of which most of a normal distribution does not."""
    gate, least = layer.linear("ffn_gate", h), layer.get("activation_sparsity_scale")[layer.i]
    if least == -math.inf:
        return gelu_tanh(gate)
    cutoff = gate.mean(-1, keepdims=True) + least * gate.std(-1, keepdims=True)
    return gelu_tanh(np.maximum(gate - cutoff, 0))


def modalities(layer, x):
    return np.tanh(layer.linear("altup_router", norm(layer, "altup_router_norm", x) / layer.file.n_embd))


def active_part(layer, x, seen):
    h = norm(layer, "attn_norm", x)
    low_rank = h + norm(layer, "laurel_post_norm", layer.linear("laurel_r", layer.linear("laurel_l", h)))
    local = windowed(PATTERN, layer)
    x = (x + norm(layer, "post_attention_norm", attention(layer, h, local, seen)) + low_rank) / math.sqrt(2)
    h = norm(layer, "ffn_norm", x)
    f = layer.linear("ffn_down", gates(layer, h) * layer.linear("ffn_up", h))
    return x + norm(layer, "post_ffw_norm", f)


def through_layer(layer, streams, own, seen):
    """``streams`` [streams, tokens, width], of which the first is the one that the layer computes with."""
    n = len(streams)
    weights = layer.linear("altup_predict_coef", modalities(layer, streams[0])).reshape(-1, n, n)
    predicted = streams + np.einsum("tij,jtd->itd", weights, streams)
    x = active_part(layer, predicted[0], seen)
    weights = 1 + layer.linear("altup_correct_coef", modalities(layer, x))
    streams = predicted + weights.T[:, :, None] * (x - predicted[0])
    gate = gelu_tanh(layer.linear("inp_gate", layer["altup_correct_scale.weight"] * streams[0]))
    streams[1:] += norm(layer, "post_norm", layer.linear("proj", gate * own))
    return streams


def decode(file, tokens):
    x = math.sqrt(file.n_embd) * file.w["token_embd.weight"][tokens]
    of_layers, seen = embeddings_of_layers(file, tokens, x), {}
    streams = np.stack([x, *(scaled_to(x, x @ w.T) for w in file.w["altup_proj.weight"])])
    for layer in file.layers():
        streams = through_layer(layer, streams, of_layers[:, layer.i], seen)
    joining = zip(streams[1:], file.w["altup_unembd_proj.weight"], strict=True)
    x = np.mean([streams[0], *(scaled_to(streams[0], y @ w.T) for y, w in joining)], axis=0)
    h = rms(x, file.w["output_norm.weight"], file.get("attention.layer_norm_rms_epsilon"))
    return capped(0.0)(file, file.linear("token_embd", h))


WHOLE = {"gemma3n": decode}
