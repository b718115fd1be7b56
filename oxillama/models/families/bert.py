"""Encoders: BERT, and Nomic's with rotation and a gated network in place of learned positions and GELU.

Devlin et al., "BERT", 2018; Nussbaum et al., "Nomic Embed", 2024.
"""

from oxillama.models.encoder import Encoder, read_encoder_spec
from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.traits import Traits

BERT = Traits(rope="none", norm="layer", pre_norms=False, positions=True, biased=("q", "k", "v", "o", "ffn"),
              activation="gelu_erf", gated=False, causal=False)  # fmt: skip
NOMIC = Traits(rope="neox", norm="layer", pre_norms=False, causal=False)

register(
    Architecture("bert", "BERT, BGE, E5, MiniLM", BERT, build=Encoder, read_spec=read_encoder_spec),
    Architecture("nomic-bert", "Nomic Embed v1", NOMIC, TRANSFORMERS, Encoder, read_encoder_spec),
)
