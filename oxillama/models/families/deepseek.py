"""DeepSeek-V2 and V3, and what carries their architecture (Kimi K2, R1): latent attention, shared and routed experts.

DeepSeek-AI, "DeepSeek-V2", 2024, and "DeepSeek-V3 Technical Report", 2024. In DeepSeek-V3.2, 2025, and GLM-5, Z.ai,
2026, an index chooses the keys.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.layer_state import KvShape
from oxillama.models.decoder import Decoder
from oxillama.models.experts import ExpertSpec
from oxillama.models.indexed import IndexedDecoder, InterleavedIndexAttention, read_indexed
from oxillama.models.latent import LatentAttention, LatentSpec
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


def read(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Hyper-parameters; heads are what the cache has: one, of the latent vector."""
    spec = read_spec(file, traits)
    sizes = LatentSpec.read(file.metadata, spec.arch, spec.n_heads)
    layers = tuple(replace(layer, n_kv_heads=1) for layer in spec.layers)
    states = ((KvShape(1, sizes.cached, sizes.rank),),) * spec.n_layers
    spec = replace(spec, head_dim=sizes.cached, v_head_dim=sizes.rank, layers=layers, states=states)
    if spec.experts is None:
        return spec
    return replace(spec, experts=replace(spec.experts, gating=gating(file, spec.experts)))


def gating(file: GGUFFile, experts: ExpertSpec) -> str:
    """Metadata's, or what goes with the tensors: only V3 and its relatives, which have sigmoids, correct choices."""
    if file.metadata.get_int(f"{file.metadata.arch}.expert_gating_func", 0):
        return experts.gating
    return "sigmoid" if any(name.endswith(".exp_probs_b.bias") for name in file.tensors) else experts.gating


def build(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, traits, w, context_size, LatentAttention)


def read_with_index(file: GGUFFile, traits: Traits) -> ModelSpec:
    return read_indexed(file, read(file, traits))


def build_glm(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return IndexedDecoder(spec, traits, w, context_size, InterleavedIndexAttention)


KEYS = frozenset({"rope.scaling.yarn_log_multiplier"})

register(Architecture("deepseek2", "DeepSeek-V2, V3, R1", Traits(keys=KEYS), build=build, read_spec=read))
register(Architecture("mistral4", "Mistral Small 4", Traits(keys=KEYS), build=build, read_spec=read))
register(
    Architecture("deepseek32", "DeepSeek-V3.2", Traits(keys=KEYS), build=IndexedDecoder, read_spec=read_with_index),
    Architecture("glm-dsa", "GLM-5, 5.1, 5.2", Traits(keys=KEYS), build=build_glm, read_spec=read_with_index),
)
