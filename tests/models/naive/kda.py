"""Kimi Linear: the delta rule with a decay for each channel of keys, between layers of latent attention.

Moonshot AI, "Kimi Linear", 2025; llama.cpp's converter for names. Nothing rotates.
"""

import numpy as np

from .attention import split_heads
from .delta import recurrence, unit
from .dense import Arch, norm
from .experts import SIGMOID, experts
from .latent import latent_attention
from .parts import rms, sigmoid, silu, softplus
from .recurrent import causal_convolution


def channel_delta(layer, h):
    heads, width = layer.heads, layer.get("kda.head_dim")

    def convolved(part):
        filters = layer[f"ssm_conv1d_{part}.weight"].reshape(heads * width, -1)
        return split_heads(silu(causal_convolution(layer.linear(f"attn_{part}", h), filters)), width)

    def through_a_narrow_one(part):
        return layer.linear(f"ssm_{part}_b", layer.linear(f"ssm_{part}_a", h))

    q, k, v = (convolved(part) for part in "qkv")
    steps = split_heads(softplus(through_a_narrow_one("f") + layer["ssm_dt.bias"]), width)
    forget = np.exp(layer["ssm_a"].reshape(heads, 1) * steps)
    y = recurrence(unit(q) / np.sqrt(width), unit(k), v, forget, sigmoid(layer.linear("ssm_beta", h)))
    y = rms(y, layer["ssm_norm.weight"], layer.get("attention.layer_norm_rms_epsilon")).reshape(len(h), -1)
    return layer.linear("attn_output", y * sigmoid(through_a_narrow_one("g")))


def kimi_layer(arch, layer, x, options):
    h = norm(arch, layer, "attn_norm", x)
    x = x + (latent_attention(arch, layer, h, options) if layer.kv_heads else channel_delta(layer, h))
    return x + arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


ARCHS = {"kimi-linear": Arch(kimi_layer, ffn=experts(normalise=True, gating=SIGMOID), pairing=None)}
