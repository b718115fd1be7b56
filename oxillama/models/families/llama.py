"""Llama and its near relatives: RMS norms, rotation of neighbours, SwiGLU.

Touvron et al., "LLaMA", 2023; Jiang et al., "Mixtral of Experts", 2024; Bakouch et al., "SmolLM3", 2025; IBM,
"Granite 3.0 Language Models", 2024, whose scales follow Yang et al., "Tensor Programs V", 2022.
"""

from oxillama.models.registry import Architecture, register
from oxillama.models.traits import Traits, all_but_each

GRANITE_KEYS = frozenset({"embedding_scale", "residual_scale", "attention.scale", "logit_scale"})
GRANITE = Traits(logit_scale="divides", keys=GRANITE_KEYS)

register(
    Architecture("llama", "Llama 1 to 3, Mistral, Mixtral, Yi, and all that were converted under this name", Traits()),
    Architecture("smollm3", "SmolLM 3", Traits(rotates=all_but_each(4))),
    Architecture("granite", "Granite 3", GRANITE),
    Architecture("granitemoe", "Granite 3 MoE", GRANITE),
)
