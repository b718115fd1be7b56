"""Baichuan: Yang et al., "Baichuan 2: Open Large-scale Language Models", 2023, and the first models, of the same year.

Depth alone tells the model of 7B, which rotates queries and keys, from that of 13B, whose scores fall with distance.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.errors import UnsupportedModelError
from oxillama.gguf import GGUFFile
from oxillama.models.decoder import Decoder
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

ROTATING, FALLING = 32, 40  # layers
SECOND = 125696  # tokens of Baichuan 2


def read_baichuan(file: GGUFFile, traits: Traits) -> ModelSpec:
    spec = read_spec(file, traits)
    if spec.n_layers not in (ROTATING, FALLING):
        raise UnsupportedModelError(
            f"{spec.arch}.block_count is {spec.n_layers}; whether positions are rotated is known for {ROTATING} and "
            f"{FALLING} layers"
        )
    if spec.n_vocab == SECOND:
        raise UnsupportedModelError(
            f"token_embd.weight has the {SECOND} tokens of Baichuan 2, which normalises the rows of its output matrix: "
            f"files of architecture {spec.arch} don't say whether theirs are"
        )
    return spec if spec.n_layers == ROTATING else replace(spec, rope=None)


def build(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, replace(traits, alibi=spec.rope is None), w, context_size)


register(Architecture("baichuan", "Baichuan 7B, 13B", Traits(), build=build, read_spec=read_baichuan))
