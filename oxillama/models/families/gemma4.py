"""Gemma 4: Google, 2026."""

from dataclasses import replace

from oxillama.models.families.gemma import GEMMA3
from oxillama.models.gemma4 import Gemma4, read_gemma4
from oxillama.models.registry import Architecture, register

GEMMA4 = replace(
    GEMMA3,
    attention_scale=lambda spec: 1.0,
    keys=frozenset(
        {
            "attention.key_length_swa",
            "attention.shared_kv_layers",
            "attention.value_length_swa",
            "embedding_length_per_layer_input",
            "final_logit_softcapping",
            "rope.dimension_count_swa",
        }
    ),
)

register(
    Architecture("gemma4", "Gemma 4 E2B, E4B, 12B, 26B, 31B (text)", GEMMA4, build=Gemma4, read_spec=read_gemma4),
)
