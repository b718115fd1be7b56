"""Qwen3-Next and its successors: gated delta rule in most layers, gated attention in the others.

Qwen, "Qwen3-Next", 2025; "Qwen3.5", 2026, and "Qwen3.6", which is computed alike.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.gguf import GGUFFile, Metadata
from oxillama.models.decoder import Decoder
from oxillama.models.delta import GatedDelta
from oxillama.models.delta_spec import RECURRENT_LAYERS, read_delta_spec
from oxillama.models.gated_attention import JointlyGatedAttention
from oxillama.models.layers import Mixer, Residual
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec, attention_states, read_spec, read_switches
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

INTERVAL = 4  # of so many layers the last has attention, where metadata don't say


def read_mixer(spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> Mixer:
    if spec.layers[i].n_kv_heads:
        return JointlyGatedAttention(spec, traits, w, i, residual)
    return GatedDelta(spec, w, i, residual)


def build(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, traits, w, context_size, read_mixer)


def read_delta_model(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Metadata count the heads of attention once for all layers; those with the delta rule have none."""
    m, spec = file.metadata, read_spec(file, traits)
    rule = read_delta_spec(m, neighbours=spec.arch == "qwen3next")
    rule = replace(rule, joint=any(name.endswith(".ssm_in.weight") for name in file.tensors))
    recurrent = recurrent_layers(m, spec.arch)
    layers = tuple(
        replace(layer, n_heads=0, n_kv_heads=0) if recurrent[i] else layer for i, layer in enumerate(spec.layers)
    )
    values = 2 * (rule.n_convolved + rule.n_inner)  # two rows of what goes into the rule, and two of what comes out
    spec = replace(spec, layers=layers, delta=rule, mixer_values=values)
    return replace(spec, states=tuple(kv or (rule.shape,) for kv in attention_states(spec)))


def recurrent_layers(m: Metadata, arch: str, interval: int = INTERVAL) -> list[bool]:
    """Whether each block of the file is recurrent; ``interval``: where metadata don't say one."""
    n, key = m.get_int(f"{arch}.block_count"), f"{arch}.{RECURRENT_LAYERS}"
    if key in m:
        return read_switches(m, key, n, "are recurrent")
    interval = m.get_int(f"{arch}.full_attention_interval", interval, minimum=1, maximum=1 << 12)
    return [i % interval != interval - 1 for i in range(n)]


QWEN3NEXT = Traits(rope="neox", qk_norm="head", ffn_norm="post_attention_norm")
# Positions of three parts, all of which count the tokens of a text.
QWEN35 = replace(QWEN3NEXT, keys=frozenset({"rope.dimension_sections"}))

register(
    Architecture("qwen3next", "Qwen3-Next 80B, Qwen3-Coder-Next", QWEN3NEXT, build=build, read_spec=read_delta_model),
    Architecture("qwen35", "Qwen 3.5, 3.6 (text)", QWEN35, build=build, read_spec=read_delta_model),
    Architecture("qwen35moe", "Qwen 3.5 MoE, 3.6 MoE (text)", QWEN35, build=build, read_spec=read_delta_model),
)
