"""Kimi Delta Attention in most layers, latent attention in the others, and experts.

Moonshot AI, "Kimi Linear", 2025, whose latent attention knows no positions; Ant Group, "Ling 3.0", 2026. Layers with
latent attention are those to which metadata give a key/value head.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile
from oxillama.layer_state import KvShape
from oxillama.models.decoder import Decoder
from oxillama.models.families.sparse import LIMITS, with_limits
from oxillama.models.kda import SAFE_GATE, ChannelDeltaMixer, is_bounded, read_kda
from oxillama.models.latent import GatedLatentAttention, LatentAttention, LatentSpec
from oxillama.models.layers import Mixer, Residual
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


def read_mixer(spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> Mixer:
    if not spec.layers[i].n_kv_heads:
        return ChannelDeltaMixer(spec, traits, w, i, residual)
    kind = LatentAttention if traits.gate == "none" else GatedLatentAttention
    return kind(spec, traits, w, i, residual)


def build(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, traits, w, context_size, read_mixer)


def read(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Hyper-parameters; heads of attention are what the cache has: one, of the latent vector, or none."""
    m, spec = file.metadata, read_spec(file, traits)
    key, rule = f"{spec.arch}.attention.head_count_kv", read_kda(m, bounded=is_bounded(traits))
    for layer in spec.layers:
        if layer.n_kv_heads > 1:
            raise LoadError(f"{key} is {layer.n_kv_heads}, but keys and values are unfolded from one head")
    layers = tuple(layer if layer.n_kv_heads else replace(layer, n_heads=0) for layer in spec.layers)
    head_dim, v_head_dim = spec.head_dim, spec.v_head_dim
    if any(layer.n_heads for layer in layers):
        sizes = LatentSpec.read(m, spec.arch, spec.n_heads, hybrid=True)
        head_dim, v_head_dim = sizes.cached, sizes.rank
    kept = (KvShape(1, head_dim, v_head_dim),)
    states = tuple(kept if layer.n_kv_heads else rule.shapes for layer in layers)
    spec = replace(spec, head_dim=head_dim, v_head_dim=v_head_dim, layers=layers, states=states)
    return replace(spec, mixer_values=11 * rule.n_inner)


def read_ling(file: GGUFFile, traits: Traits) -> ModelSpec:
    return with_limits(read(file, traits), file.metadata)


LING = Traits(recurrent=True, gate="sigmoid", keys=frozenset({SAFE_GATE, *LIMITS}))

register(
    Architecture("kimi-linear", "Kimi Linear 48B", Traits(rope="none", recurrent=True), build=build, read_spec=read),
    Architecture("bailingmoe3", "Ling 3.0 tiny, flash", LING, build=build, read_spec=read_ling),
)
