"""MiniMax-01: lightning attention in most layers, softmax attention in the others, and experts.

MiniMax, "MiniMax-01: Scaling Foundation Models with Lightning Attention", 2025.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile
from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows, add_scaled_, scale_, take_rows
from oxillama.models.attention import SelfAttention
from oxillama.models.decoder import Decoder, Layer, ReadMixer
from oxillama.models.families.delta import recurrent_layers
from oxillama.models.layers import LayerSlabs, Mixer, Residual
from oxillama.models.lightning import LightningAttention, lightning_shape
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec, attention_states, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

INTERVAL = 8  # of so many layers the last has softmax attention, where metadata don't say


class NormedStream(Layer):
    """``h = norm(x); x = scale h + mixer(h)``, and likewise the feed-forward part: branches start from the norm.

    Wang et al., "DeepNet: Scaling Transformers to 1,000 Layers", 2022, whose norms stand behind the sums.
    """

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, read_mixer: ReadMixer) -> None:
        super().__init__(spec, traits, w, i, read_mixer)
        self.scale = spec.scales.stream

    def forward(self, x: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        h = self.attn_norm(x, self.mixer.codes)
        self.begin(x, h)
        self.mixer.add_to(x, h, cos_sin, slabs, batch)
        self.feed_forward(x, batch)

    def outputs(self, x: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> Rows:
        """The last layer: all rows store their state, but only those of the output are computed further."""
        h = self.attn_norm(x, self.mixer.codes)
        x = take_rows(h, batch.output_rows)
        scale_(x, self.scale)
        self.mixer.add_outputs_to(x, h, cos_sin, slabs, batch)
        if x.n:
            self.feed_forward(x, batch.outputs)
        return x

    def feed_forward(self, x: Rows, batch: Batch) -> None:
        h = self.ffn_input(x, x)
        self.begin(x, h)
        self.ffn.add_to(x, h, batch)

    def begin(self, x: Rows, h: Rows) -> None:
        """``x = scale h``, in place."""
        scale_(x, 0.0)
        add_scaled_(x, h, self.scale)


def read_mixer(spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> Mixer:
    if spec.layers[i].n_kv_heads:
        return SelfAttention(spec, traits, w, i, residual)
    return LightningAttention(spec, w, i, residual)


def build(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, traits, w, context_size, read_mixer, NormedStream)


def read(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Metadata count the heads of attention once for all layers, and scale the stream, not the branches."""
    m, spec = file.metadata, read_spec(file, traits)
    if spec.v_head_dim != spec.head_dim:
        raise LoadError(
            f"{spec.arch}.attention.value_length is {spec.v_head_dim}, but attention.key_length {spec.head_dim}: "
            "queries, keys and values share a matrix head by head"
        )
    shape, recurrent = lightning_shape(m, spec.head_dim), recurrent_layers(m, spec.arch, INTERVAL)
    layers = tuple(
        replace(layer, n_heads=0, n_kv_heads=0) if recurrent[i] else layer for i, layer in enumerate(spec.layers)
    )
    scales = replace(spec.scales, residual=1.0, stream=spec.scales.residual)
    spec = replace(spec, layers=layers, scales=scales, mixer_values=13 * shape.n_values // spec.head_dim)
    return replace(spec, states=tuple(kv or (shape,) for kv in attention_states(spec)))


MINIMAX01 = Traits(rope="neox", by_index=True, keys=frozenset({"residual_scale"}))

register(Architecture("minimax-01", "MiniMax-Text-01, M1", MINIMAX01, build=build, read_spec=read))
