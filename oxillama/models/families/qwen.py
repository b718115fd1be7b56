"""Qwen: Yang et al., "Qwen2 Technical Report", 2024; "Qwen3 Technical Report", 2025."""

from dataclasses import replace

from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile
from oxillama.models.registry import TRANSFORMERS, UNVERIFIED, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits


def read_qwen(file: GGUFFile, traits: Traits) -> ModelSpec:
    """The first Qwen's feed_forward_length is that of gate and up together."""
    spec = read_spec(file, traits)
    if any(layer.n_ff % 2 for layer in spec.layers):
        raise LoadError(f"{spec.arch}.feed_forward_length is {spec.n_ff}, which can't be that of two equal matrices")
    return replace(spec, layers=tuple(replace(layer, n_ff=layer.n_ff // 2) for layer in spec.layers))


QWEN2 = Traits(rope="neox", biased=("q", "k", "v"))
QWEN3 = Traits(rope="neox", qk_norm="head")
# Models that see have positions of three parts, all of which count the tokens of a text.
SEEING = frozenset({"rope.dimension_sections"})

register(
    Architecture("qwen2", "Qwen 1.5, Qwen 2, Qwen 2.5", QWEN2),
    Architecture("qwen2moe", "Qwen 1.5 MoE, Qwen 2 MoE", QWEN2),
    Architecture("qwen3", "Qwen 3", QWEN3),
    Architecture("qwen3moe", "Qwen 3 MoE", QWEN3),
    Architecture("qwen", "Qwen 1", QWEN2, UNVERIFIED, read_spec=read_qwen),
    Architecture("qwen2vl", "Qwen 2 VL, 2.5 VL (text)", replace(QWEN2, keys=SEEING), TRANSFORMERS),
    Architecture("qwen3vl", "Qwen 3 VL (text)", replace(QWEN3, keys=SEEING), TRANSFORMERS),
    Architecture("qwen3vlmoe", "Qwen 3 VL MoE (text)", replace(QWEN3, keys=SEEING), UNVERIFIED),
)
