"""Phi: Li et al., "Textbooks Are All You Need II", 2023; Abdin et al., "Phi-3 Technical Report", 2024."""

from oxillama.models.registry import Architecture, register
from oxillama.models.traits import Part, Traits

ALL: tuple[Part, ...] = ("q", "k", "v", "o", "ffn")

PHI2 = Traits(rope="neox", norm="layer", ffn_norm=None, parallel="yes", biased=ALL, activation="gelu", gated=False)
PHI3 = Traits(rope="neox")

register(
    Architecture("phi2", "Phi 1, 1.5, 2", PHI2),
    Architecture("phi3", "Phi 3, 3.5 mini, 4 mini, Phi 4", PHI3),
)
