"""Llama and its near relatives: RMS norms, rotation of neighbours, SwiGLU.

Touvron et al., "LLaMA", 2023; Jiang et al., "Mixtral of Experts", 2024; Bakouch et al., "SmolLM3", 2025; IBM,
"Granite 3.0 Language Models", 2024, whose scales follow Yang et al., "Tensor Programs V", 2022.
"""

from dataclasses import replace

from oxillama.gguf import GGUFFile, Metadata
from oxillama.models.looped import Looped, read_looped
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits, all_but_each


def rotated_if_trained(spec: ModelSpec, m: Metadata) -> ModelSpec:
    """Granite's attention rotates unless metadata say that positions were left out in training."""
    return spec if m.get_bool(f"{spec.arch}.rope.scaling.finetuned", True) else replace(spec, rope=None)


def shared_as_dense(spec: ModelSpec, m: Metadata) -> ModelSpec:
    """Granite 4 without experts has kept the shared one, under a dense network's names and with its own width."""
    key = f"{spec.arch}.expert_shared_feed_forward_length"
    if spec.experts is not None or key not in m:
        return spec
    n_ff = m.get_int(key, minimum=1, maximum=1 << 24)
    return replace(spec, layers=tuple(replace(layer, n_ff=n_ff) for layer in spec.layers))


def read_granite(file: GGUFFile, traits: Traits) -> ModelSpec:
    m = file.metadata
    return shared_as_dense(rotated_if_trained(read_spec(file, traits), m), m)


NANBEIGE = Traits(keys=frozenset({"num_loops"}))
GRANITE_KEYS = frozenset({"embedding_scale", "residual_scale", "attention.scale", "logit_scale"})
GRANITE = Traits(logit_scale="divides", keys=GRANITE_KEYS)

register(
    Architecture("llama", "Llama 1 to 3, Mistral, Mixtral, Yi, and all that were converted under this name", Traits()),
    Architecture("smollm3", "SmolLM 3", Traits(rotates=all_but_each(4))),
    Architecture("nanbeige", "Nanbeige 4.2", NANBEIGE, build=Looped, read_spec=read_looped),
    Architecture("granite", "Granite 3", GRANITE, read_spec=read_granite),
    Architecture("granitemoe", "Granite 3 MoE", GRANITE, read_spec=read_granite),
    Architecture("granite_swa", "Granite with windows", replace(GRANITE, sinks="some"), read_spec=read_granite),
)
