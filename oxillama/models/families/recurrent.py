"""Models with recurrent layers, alone or beside attention.

Gu and Dao, 2023 (Mamba); Zuo et al., 2024 (Falcon Mamba); Dao and Gu, 2024 (Mamba-2); Lieber et al., 2024 (Jamba);
IBM, "Granite 4.0", 2025; NVIDIA, "Nemotron-H", 2025; Zuo et al., "Falcon-H1", 2025, whose files have its multipliers in
the weights; Liquid AI, LFM2, 2025.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile, Metadata
from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows
from oxillama.layer_state import LayerShape, RecurrentShape
from oxillama.models.attention import SelfAttention
from oxillama.models.decoder import Decoder, ReadMixer
from oxillama.models.families.llama import GRANITE, rotated_if_trained, shared_as_dense
from oxillama.models.layers import LayerSlabs, Mixer, Residual
from oxillama.models.mamba import Mamba, Mamba2, ShortConvolution, read_ssm, read_taps
from oxillama.models.registry import TRANSFORMERS, Architecture, Build, ReadSpec, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

ReadRecurrent = Callable[[ModelSpec, Weights, int, Residual], Mixer]
ReadShape = Callable[[Metadata, ModelSpec], RecurrentShape]


class Both:
    """Attention and a recurrent mixer of the same input, added to the same stream."""

    def __init__(self, attention: Mixer, recurrent: Mixer) -> None:
        self.attention, self.recurrent = attention, recurrent
        self.codes = attention.codes or recurrent.codes

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        self.attention.add_to(x, h, cos_sin, slabs[:1], batch)
        self.recurrent.add_to(x, h, cos_sin, slabs[1:], batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        self.attention.add_outputs_to(x, h, cos_sin, slabs[:1], batch)
        self.recurrent.add_outputs_to(x, h, cos_sin, slabs[1:], batch)


class Neither:
    """No mixer, in layers that are a feed-forward part alone."""

    codes = False

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        pass

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        pass


def building(recurrent: ReadRecurrent, *, both: bool = False, single: bool = False) -> Build:
    """A decoder whose layers without key/value heads are recurrent; with ``both``, all are and have attention too.

    ``single``: a layer is a mixer or a feed-forward part.
    """

    def read_mixer(spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> Mixer:
        if single and spec.layers[i].n_ff:
            return Neither()
        if not spec.layers[i].n_kv_heads:
            if f"blk.{i}.attn_q.weight" in w:
                key = f"{spec.arch}.attention.head_count_kv"
                raise LoadError(f"{key} is 0 in layer {i}, but the file has a tensor blk.{i}.attn_q.weight")
            return recurrent(spec, w, i, residual)
        attention = SelfAttention(spec, traits, w, i, residual)
        return Both(attention, recurrent(spec, w, i, residual)) if both else attention

    mixer: ReadMixer = read_mixer
    return lambda spec, traits, w, context_size: Decoder(spec, traits, w, context_size, mixer)


def reading(shape: ReadShape, *, both: bool = False) -> ReadSpec:
    """The spec whose layers keep what `building` needs."""

    def read(file: GGUFFile, traits: Traits) -> ModelSpec:
        spec = read_spec(file, traits)
        kept = shape(file.metadata, spec)
        if both and not all(layer.n_kv_heads for layer in spec.layers):
            raise LoadError(f"{spec.arch}.attention.head_count_kv is 0; every layer of {spec.arch} has attention")
        recurrent: LayerShape = (kept,)
        return replace(spec, states=tuple((*kv, kept) if both else kv or recurrent for kv in spec.states))

    return read


def read_nemotron_h(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Layers with a feed-forward part keep nothing, as they are that alone."""
    spec = reading(mamba2_shape)(file, traits)
    for i, layer in enumerate(spec.layers):
        if layer.n_ff and layer.n_kv_heads:
            raise LoadError(
                f"{spec.arch}.feed_forward_length is {layer.n_ff} and attention.head_count_kv {layer.n_kv_heads} in "
                f"layer {i}; a layer of {spec.arch} has one of them"
            )
    kept = zip(spec.states, spec.layers, strict=True)
    return replace(spec, states=tuple(() if layer.n_ff else shape for shape, layer in kept))


def mamba_shape(m: Metadata, spec: ModelSpec) -> RecurrentShape:
    return read_ssm(m, 1).shape


def mamba2_shape(m: Metadata, spec: ModelSpec) -> RecurrentShape:
    return read_ssm(m, 2).shape


def convolution_shape(m: Metadata, spec: ModelSpec) -> RecurrentShape:
    return RecurrentShape((read_taps(m) - 1) * spec.n_embd)


def read_granite(file: GGUFFile, traits: Traits) -> ModelSpec:
    m = file.metadata
    return shared_as_dense(rotated_if_trained(reading(mamba2_shape)(file, traits), m), m)


MAMBA = Traits(rope="none", recurrent=True, ffn_norm=None)
JAMBA = Traits(rope="none", recurrent=True)
GRANITE_HYBRID = replace(GRANITE, recurrent=True)
FALCON_H1 = Traits(rope="neox", recurrent=True)
NEMOTRON_H = Traits(
    rope="none", recurrent=True, ffn_norm="attn_norm", activation="relu2", gated=False, either_epsilon=True
)
LFM2 = Traits(rope="neox", recurrent=True, qk_norm="head", output_norm="token_embd_norm")

register(
    Architecture("mamba", "Mamba, Falcon Mamba", MAMBA, build=building(Mamba), read_spec=reading(mamba_shape)),
    Architecture("mamba2", "Mamba-2, Codestral Mamba", MAMBA, build=building(Mamba2), read_spec=reading(mamba2_shape)),
    Architecture("jamba", "Jamba", JAMBA, build=building(Mamba), read_spec=reading(mamba_shape)),
    Architecture("granitehybrid", "Granite 4", GRANITE_HYBRID, build=building(Mamba2), read_spec=read_granite),
    Architecture(
        "falcon-h1",
        "Falcon-H1",
        FALCON_H1,
        build=building(Mamba2, both=True),
        read_spec=reading(mamba2_shape, both=True),
    ),
    Architecture(
        "nemotron_h",
        "Nemotron-H, Nemotron Nano 2",
        NEMOTRON_H,
        TRANSFORMERS,
        build=building(Mamba2, single=True),
        read_spec=read_nemotron_h,
    ),
    Architecture(
        "nemotron_h_moe",
        "Nemotron 3 Nano, Super",
        replace(NEMOTRON_H, keys=frozenset({"moe_latent_size"})),
        build=building(Mamba2, single=True),
        read_spec=read_nemotron_h,
    ),
    Architecture("lfm2", "LFM2", LFM2, build=building(ShortConvolution), read_spec=reading(convolution_shape)),
    Architecture("lfm2moe", "LFM2 MoE", LFM2, TRANSFORMERS, building(ShortConvolution), reading(convolution_shape)),
)
