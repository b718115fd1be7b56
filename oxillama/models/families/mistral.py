"""Mistral's models whose queries grow with their position: Ministral 3, Devstral 2 (Mistral AI, 2025).

Earlier ones, and Mistral Small 3, come as "llama".
"""

import math
from dataclasses import replace

from oxillama.errors import UnsupportedModelError
from oxillama.gguf import GGUFFile
from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits


def read_mistral3(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Scores grow with the logarithm of how many original contexts away a query is.

    YaRN's magnitude is divided by what it would be for a factor taken to the power of ``yarn_log_multiplier``: by
    itself, for 1.
    """
    m, spec = file.metadata, read_spec(file, traits)
    rope = spec.rope
    if rope is None:
        raise UnsupportedModelError(f"{m.arch}.attention.head_count is 0")
    multiplier = m.get_float(f"{m.arch}.rope.scaling.yarn_log_multiplier", 0.0, minimum=0.0, maximum=1e3)
    if rope.scaling == "yarn":
        rope = replace(rope, attn_factor=rope.attn_factor / (1 + 0.1 * multiplier * math.log(rope.factor)))
    sharpening = m.get_float(f"{m.arch}.attention.temperature_scale", 0.0, minimum=0.0, maximum=1e3)
    scales = replace(spec.scales, sharpening=sharpening, sharpening_length=rope.original_context)
    return replace(spec, rope=rope, scales=scales)


KEYS = frozenset({"attention.temperature_scale", "rope.scaling.yarn_log_multiplier"})

register(
    Architecture("mistral3", "Ministral 3, Devstral 2", Traits(keys=KEYS), TRANSFORMERS, read_spec=read_mistral3),
)
