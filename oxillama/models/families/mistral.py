"""Mistral's models whose queries grow with their position: Ministral 3, Devstral 2 (Mistral AI, 2025).

Earlier ones, and Mistral Small 3, come as "llama".
"""

from dataclasses import replace

from oxillama.errors import UnsupportedModelError
from oxillama.gguf import GGUFFile
from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits


def read_mistral3(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Scores grow with the logarithm of how many original contexts away a query is."""
    m, spec = file.metadata, read_spec(file, traits)
    rope = spec.rope
    if rope is None:
        raise UnsupportedModelError(f"{m.arch}.attention.head_count is 0")
    sharpening = m.get_float(f"{m.arch}.attention.temperature_scale", 0.0, minimum=0.0, maximum=1e3)
    scales = replace(spec.scales, sharpening=sharpening, sharpening_length=rope.original_context)
    return replace(spec, scales=scales)


KEYS = frozenset({"attention.temperature_scale", "rope.scaling.yarn_log_multiplier"})

register(
    Architecture("mistral3", "Ministral 3, Devstral 2", Traits(keys=KEYS), TRANSFORMERS, read_spec=read_mistral3),
)
