"""Phi: Li et al., "Textbooks Are All You Need II", 2023; Abdin et al., "Phi-3 Technical Report", 2024.

Phi 3.5 MoE routes by SparseMixer: Liu et al., "GRIN: GRadient-INformed MoE", 2024.
"""

from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Part, Traits

ALL: tuple[Part, ...] = ("q", "k", "v", "o", "ffn", "output")

PHI2 = Traits(rope="neox", norm="layer", ffn_norm=None, parallel="yes", biased=ALL, activation="gelu", gated=False)
PHI3 = Traits(rope="neox")
PHIMOE = Traits(rope="neox", norm="layer", rms_epsilon=True, biased=("q", "k", "v", "o", "output"))

# short_mscale and long_mscale of the model's configuration. Files have what the converter computes for Phi 3, 1.1902.
PHIMOE_MAGNITUDE = 1.243163121016122


def read_phimoe(file: GGUFFile, traits: Traits) -> ModelSpec:
    spec = read_spec(file, traits)
    if spec.rope is None or "rope_factors_long.weight" not in file.tensors:
        return spec
    return replace(spec, rope=replace(spec.rope, attn_factor=PHIMOE_MAGNITUDE))


register(
    Architecture("phi2", "Phi 1, 1.5, 2", PHI2),
    Architecture("phi3", "Phi 3, 3.5 mini, 4 mini, Phi 4", PHI3),
    Architecture("phimoe", "Phi 3.5 MoE, mini MoE", PHIMOE, TRANSFORMERS, read_spec=read_phimoe),
)
