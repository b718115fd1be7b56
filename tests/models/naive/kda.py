"""Kimi Linear, Ling 3.0: the delta rule with a decay for each channel of keys, between layers of latent attention.

Moonshot AI, "Kimi Linear", 2025, in which nothing rotates; Ant Group, "Ling 3.0", 2026, whose attention does and is
gated, and the logarithms of whose decays have a bound; llama.cpp's converter for names.
"""

import numpy as np

from .attention import split_heads
from .delta import recurrence, unit
from .dense import Arch, norm
from .experts import SIGMOID, experts
from .latent import latent_attention
from .parts import rms, sigmoid, silu, softplus
from .recurrent import causal_convolution
from .sparse import LIMITED, gate


def channel_delta(layer, h):
    heads, width = layer.heads, layer.get("kda.head_dim")

    def convolved(part):
        filters = layer[f"ssm_conv1d_{part}.weight"].reshape(heads * width, -1)
        return split_heads(silu(causal_convolution(layer.linear(f"attn_{part}", h), filters)), width)

    def projected(part):
        """Through a narrow matrix, or by one alone."""
        y = layer.linear(f"ssm_{part}_a", h)
        return layer.linear(f"ssm_{part}_b", y) if f"ssm_{part}_b.weight" in layer else y

    q, k, v = (convolved(part) for part in "qkv")
    steps = split_heads(projected("f") + layer["ssm_dt.bias"], width)
    rates, bound = layer["ssm_a"].reshape(heads, 1), layer.get("kda.gate_lower_bound", 0.0)
    forget = np.exp(bound * sigmoid(rates * steps) if bound else rates * softplus(steps))
    y = recurrence(unit(q) / np.sqrt(width), unit(k), v, forget, sigmoid(layer.linear("ssm_beta", h)))
    y = rms(y, layer["ssm_norm.weight"], layer.get("attention.layer_norm_rms_epsilon")).reshape(len(h), -1)
    return layer.linear("attn_output", y * sigmoid(projected("g")))


def kimi_layer(arch, layer, x, options):
    h = norm(arch, layer, "attn_norm", x)
    x = x + (latent_attention(arch, layer, h, options) if layer.kv_heads else channel_delta(layer, h))
    return x + arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


ARCHS = {
    "kimi-linear": Arch(kimi_layer, ffn=experts(normalise=True, gating=SIGMOID), pairing=None),
    "bailingmoe3": Arch(kimi_layer, ffn=LIMITED, gate=gate(sigmoid)),
}
