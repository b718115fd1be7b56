"""Llama 4, from transformers' modelling file; llama.cpp for what files don't hold."""

from dataclasses import replace

import numpy as np

from .attention import attend, hidden_past, project, turn
from .dense import LLAMA, norm, windowed
from .experts import SIGMOID, gated, routing, shared_expert, swiglu_expert
from .parts import rms, silu

CHUNK = 8192


def attention(arch, layer, h, options):
    """Layers with chunks rotate, then normalise queries and keys; queries of the others grow with their position."""
    q, k, v = project(layer, h)
    chunk, places = layer.get("attention.sliding_window", CHUNK), np.arange(len(h))
    hidden = hidden_past(len(h), 0)
    if not chunk or windowed(arch, layer):
        q, k = (turn(layer, y, arch.pairing, options, None) for y in (q, k))
        if layer.get("expert_count", 0) != 128:
            q, k = (rms(y, 1.0, layer.get("attention.layer_norm_rms_epsilon")) for y in (q, k))
        if chunk:
            hidden = hidden | (places[:, None] // chunk != places // chunk)
    else:
        times = (places + 1) // layer.get("attention.temperature_length", CHUNK)
        q = q * (1 + layer.get("attention.temperature_scale", 0.1) * np.log(1 + times))[:, None, None]
    return layer.linear("attn_output", attend(q, k, v, layer.k_dim**-0.5, hidden=hidden))


def feed_forward(layer, h):
    """The expert of the highest score reads its input times the sigmoid of the score."""
    if "ffn_gate_inp.weight" not in layer:
        return gated(silu)(layer, h)
    weights, out = routing(layer, layer.linear("ffn_gate_inp", h), SIGMOID, False), np.zeros_like(h)
    for e in range(weights.shape[1]):
        w = weights[:, e : e + 1]
        out += (w > 0) * swiglu_expert(layer, e, w * h)
    return out + shared_expert(layer, h)


def layer(arch, layer, x, options):
    x = x + attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    return x + feed_forward(layer, norm(arch, layer, "ffn_norm", x))


ARCHS = {"llama4": replace(LLAMA, layer=layer, window_every=4)}
