"""HRM-Text: a fast and a slow stack of layers, gone through in turns; each block of the file's count is one layer once.

Sapient Intelligence, "HRM-Text", 2026, its modelling file in transformers.
"""

from dataclasses import replace

import numpy as np

from . import dense
from .dense import QWEN
from .file import Layer
from .parts import rms, sigmoid
from .sparse import gate


def plain_norm(file, x):
    return rms(x, 1.0, file.get("attention.layer_norm_rms_epsilon"))


def embed(file, tokens, arch):
    """The slow state, the fast one, and what is on its way through a stack."""
    high = (file.get("embedding_scale", 0.0) or 1.0) * file.w["token_embd.weight"][tokens]
    return high, np.zeros_like(high) + file.w["hrm.z_l_init"], None


def one_layer(arch, layer, x, options):
    (high, low, now), file = x, layer.file
    per_stack, passes = file.get("hrm.layers_per_stack"), file.get("hrm.l_cycles") + 1
    turn, place = divmod(layer.i, per_stack)
    slow = turn % passes == passes - 1
    block = Layer(file, place + per_stack * slow)
    if place == 0:
        now = high + low
    now = now + dense.self_attention(arch, block, plain_norm(file, now), options)
    now = now + arch.ffn(block, plain_norm(file, now))
    if place == per_stack - 1:
        now = plain_norm(file, now)
        high, low = (now, low) if slow else (high, now)
    return high, low, now


ARCHS = {
    "hrm_text": replace(QWEN, layer=one_layer, norm=lambda file, name, x: x[0], gate=gate(sigmoid), embed=embed),
}
