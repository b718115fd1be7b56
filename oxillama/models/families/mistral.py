"""Mistral's models whose queries grow with their position: Ministral 3, Devstral 2 (Mistral AI, 2025).

Earlier ones, and Mistral Small 3, come as "llama".
"""

from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits


def read_mistral3(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Scores grow with the logarithm of how many original contexts away a query is."""
    m, spec = file.metadata, read_spec(file, traits)
    sharpening = m.get_float(f"{m.arch}.attention.temperature_scale", 0.0, minimum=0.0, maximum=1e3)
    length = spec.rope.original_context if spec.rope else spec.context_length
    return replace(spec, scales=replace(spec.scales, sharpening=sharpening, sharpening_length=length))


MISTRAL3 = Traits(keys=frozenset({"attention.temperature_scale"}))

register(
    Architecture("mistral3", "Ministral 3, Devstral 2", MISTRAL3, TRANSFORMERS, read_spec=read_mistral3),
)
