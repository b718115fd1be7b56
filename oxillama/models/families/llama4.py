"""Llama 4: Meta, "The Llama 4 herd", 2025.

Three of four layers see a chunk of positions and rotate; queries of the others grow with their position. None of this
stands in files, unless a model (MobileLLM-R1) has no chunks: then all of its layers rotate.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.models.attention import SelfAttention
from oxillama.models.decoder import Decoder, rotation_of
from oxillama.models.layers import Residual
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits, all_but_each
from oxillama.models.weights import Weights

CHUNK = 8192  # positions, and those after which queries begin to grow
SHARPENING = 0.1
UNNORMED = 128  # experts of Maverick, whose queries and keys have no norms


def read_llama4(file: GGUFFile, traits: Traits) -> ModelSpec:
    m, spec = file.metadata, read_spec(file, traits)
    p = f"{spec.arch}.attention.temperature_"
    scale = m.get_float(p + "scale", SHARPENING, minimum=0.0, maximum=1e3)
    length = m.get_int(p + "length", CHUNK, minimum=1, maximum=1 << 31)
    return replace(spec, scales=replace(spec.scales, sharpening=scale, sharpening_length=length, sharpening_offset=1))


class Llama4Attention(SelfAttention):
    """Either rotates and normalises queries and keys, or sharpens queries."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        rotates = rotation_of(spec, traits, i) is not None
        if not rotates or (spec.experts is not None and spec.experts.n_experts == UNNORMED):
            traits = replace(traits, qk_norm="none")
        if rotates:
            spec = replace(spec, scales=replace(spec.scales, sharpening=0.0))
        super().__init__(spec, traits, w, i, residual)


def build(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, traits, w, context_size, Llama4Attention)


LLAMA4 = Traits(
    rotates="windows",
    window=CHUNK,
    chunked=True,
    windows=all_but_each(4),
    qk_norm="plain",
    qk_norm_last=True,
    keys=frozenset({"attention.temperature_length", "attention.temperature_scale"}),
)

register(
    Architecture("llama4", "Llama 4 Scout, Maverick", LLAMA4, build=build, read_spec=read_llama4),
)
