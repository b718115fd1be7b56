"""Sparse models of one recipe: a sigmoid router whose choice is corrected by a bias, shared experts, norms of heads.

MiniMax, "MiniMax-M2", 2025, and "MiniMax-M3", 2026; Arcee, "Trinity", 2025; Ant Group, "Ling 2.0", 2025; Poolside,
"Laguna", 2026; LG AI Research, "K-EXAONE", 2026; Tencent, "Hy3", 2026; JetBrains, "Mellum 2", 2026; StepFun, "Step 3.5
Flash", 2026; Xiaomi, "MiMo-V2-Flash", 2026; Song et al., "SmallThinker", 2025.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile, Metadata
from oxillama.models.attention import SelfAttention
from oxillama.models.chosen_blocks import read_attention, read_chosen_blocks
from oxillama.models.decoder import Decoder, ReadMixer
from oxillama.models.gated_attention import GatedAttention, gated_if_there
from oxillama.models.registry import TRANSFORMERS, Architecture, Build, register
from oxillama.models.routed_first import RoutedFirst
from oxillama.models.spec import ModelSpec, attention_states, per_layer_float, read_spec
from oxillama.models.traits import Traits, all_but_each, all_but_first
from oxillama.models.weights import Weights

LIMITS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")
MAX_LIMIT = 1e6
SMALLTHINKER_WINDOW = 4096  # whatever the key says, as llama.cpp has it and published models do


def mixing(mixer: ReadMixer) -> Build:
    return lambda spec, traits, w, context_size: Decoder(spec, traits, w, context_size, mixer)


def build_smallthinker(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, traits, w, context_size, SelfAttention, RoutedFirst)


def read_step35(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Layers that see everything rotate half of what those with a window do; experts have bounds by layer."""
    m, spec = file.metadata, read_spec(file, traits)
    if spec.rope is not None:
        if spec.rope.n_rot % 4:
            raise LoadError(f"{spec.arch}.rope.dimension_count is {spec.rope.n_rot}; half of it is rotated in pairs")
        rope = replace(spec.rope, n_rot=spec.rope.n_rot // 2, n_rot_windows=spec.rope.n_rot_windows)
        spec = replace(spec, rope=rope)
    return with_limits(spec, m)


def with_limits(spec: ModelSpec, m: Metadata) -> ModelSpec:
    """The spec with the bounds of metadata of what experts give between their matrices."""
    if spec.experts is None:
        return spec
    limits, shared = (read_limits(m, f"{spec.arch}.{name}", spec) for name in LIMITS)
    return replace(spec, experts=replace(spec.experts, limits=limits, shared_limits=shared))


def read_limits(m: Metadata, key: str, spec: ModelSpec) -> tuple[float, ...]:
    """A bound for each block of the file, of which those that only predict further tokens are left out; 0 is none."""
    n_blocks = m.get_int(f"{spec.arch}.block_count")
    return per_layer_float(m, key, n_blocks, 0.0, MAX_LIMIT)[: spec.n_layers]


def read_smallthinker(file: GGUFFile, traits: Traits) -> ModelSpec:
    spec = read_spec(file, traits)
    layers = tuple(replace(layer, window=SMALLTHINKER_WINDOW * (layer.window > 0)) for layer in spec.layers)
    spec = replace(spec, layers=layers)
    return replace(spec, states=attention_states(spec))


NEOX = Traits(rope="neox", qk_norm="head")
AFMOE = replace(
    NEOX, post_norms=True, embedding_scale="sqrt", windows=all_but_each(4), rotates="windows", gate="sigmoid"
)
LAGUNA = replace(
    NEOX,
    windows=all_but_first(4),
    whole_first=True,
    window_base=0.0,
    gate="softplus",
    keys=frozenset({"rope.dimension_count_swa"}),
)
EXAONE_MOE = replace(NEOX, windows=all_but_each(4), rotates="windows")
MELLUM = replace(NEOX, windows=all_but_each(4), window_base=0.0)
STEP35 = replace(
    NEOX,
    qk_norm="some",
    window_base=0.0,
    gate="sigmoid",
    keys=frozenset(LIMITS),
)
MIMO2 = Traits(rope="neox", window_base=0.0, sinks="some", keys=frozenset({"attention.value_scale"}))
SMALLTHINKER = Traits(rope="neox", windows=all_but_first(4), whole_first=True, rotates="windows")

register(
    Architecture("minimax-m2", "MiniMax-M2, M2.5", replace(NEOX, qk_norm="whole")),
    Architecture(
        "minimax-m3",
        "MiniMax-M3 (text)",
        replace(NEOX, activation="swiglu_oai"),
        TRANSFORMERS,  # llama.cpp's attention over blocks rounds
        build=mixing(read_attention),
        read_spec=read_chosen_blocks,
    ),
    Architecture("afmoe", "Trinity Nano, Mini, Large", AFMOE, build=mixing(GatedAttention)),
    Architecture("bailingmoe2", "Ling 2, Ring 2, Sarvam 30B", NEOX),
    Architecture("laguna", "Laguna XS, S, M", LAGUNA, build=mixing(GatedAttention)),
    Architecture("exaone-moe", "K-EXAONE", EXAONE_MOE),
    Architecture("hy_v3", "Hy3", NEOX),
    Architecture("mellum", "Mellum 2", MELLUM),
    Architecture("step35", "Step 3.5 Flash, 3.7 Flash", STEP35, build=mixing(gated_if_there), read_spec=read_step35),
    Architecture("mimo2", "MiMo-V2 Flash, V2.5", MIMO2),
    Architecture(
        "smallthinker",
        "SmallThinker 4B, 21B",
        SMALLTHINKER,
        build=build_smallthinker,
        read_spec=read_smallthinker,
    ),
)
