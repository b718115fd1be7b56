"""DeciLM and Llama-Nemotron: Llama whose layers were searched for, so that they differ.

Bercovich et al., "Puzzle: Distillation-Based NAS for Inference-Optimized LLMs", 2024. A layer may have no attention, or
in its place one matrix; no feed-forward part; and a number of key/value heads and a width of its own.
"""

from __future__ import annotations

from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows, take_rows
from oxillama.models.attention import SelfAttention
from oxillama.models.decoder import Decoder
from oxillama.models.layers import LayerSlabs, Mixer, Residual
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


class NoMixer:
    """Mixer of a layer that is a feed-forward part alone."""

    codes = False

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        pass

    add_outputs_to = add_to


class LinearMixer:
    """``x += out(h)``: tokens don't see each other."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int, residual: Residual) -> None:
        self.out = w.linear(f"blk.{i}.attn_output", spec.n_embd, spec.n_embd)
        self.codes, self.residual = self.out.integer, residual

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        self.residual.add_product(x, h, self.out, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        if x.n:
            self.residual.add_product(x, take_rows(h, batch.output_rows), self.out, batch.outputs)


def read_mixer(spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> Mixer:
    layer = spec.layers[i]
    if layer.n_kv_heads:
        return SelfAttention(spec, traits, w, i, residual)
    return LinearMixer(spec, w, i, residual) if layer.n_heads else NoMixer()


def build(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, traits, w, context_size, read_mixer)


register(Architecture("deci", "Llama 3.x Nemotron 49B to 253B, DeciLM", Traits(may_skip=True), build=build))
