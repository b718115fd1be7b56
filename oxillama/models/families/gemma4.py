"""Gemma 3n: Google, 2025; Gemma 4: Google, 2026."""

from dataclasses import replace

from oxillama.models.families.gemma import GEMMA3
from oxillama.models.gemma3n import Gemma3n, read_gemma3n
from oxillama.models.gemma4 import Gemma4, read_gemma4
from oxillama.models.registry import Architecture, register
from oxillama.models.traits import all_but_each

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

GEMMA3N = replace(GEMMA4, windows=all_but_each(5), keys=GEMMA4.keys | {"activation_sparsity_scale"})

register(
    Architecture("gemma3n", "Gemma 3n E2B, E4B (text)", GEMMA3N, build=Gemma3n, read_spec=read_gemma3n),
    Architecture("gemma4", "Gemma 4 E2B, E4B, 12B, 26B, 31B (text)", GEMMA4, build=Gemma4, read_spec=read_gemma4),
)
