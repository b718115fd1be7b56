"""BitNet b1.58: Llama with a norm inside each branch, before its last matrix.

Wang et al., "BitNet", 2023; Ma et al., "The Era of 1-bit LLMs", 2024. Weights are whatever format the file has. Files
don't name the activation: of what can be converted under this name it is SiLU (BitNet b1.58 2B4T, with the square of
ReLU, has other names of tensors, and its converter other names of formats).
"""

from __future__ import annotations

from oxillama.kernels.attention import KvSlab
from oxillama.kernels.batch import Batch
from oxillama.kernels.gated import gated
from oxillama.kernels.rows import Rows
from oxillama.models.attention import SelfAttention
from oxillama.models.decoder import Decoder, Layer
from oxillama.models.layers import FeedForward, Gated, Residual, RmsNorm
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


class NormedAttention(SelfAttention):
    """``x += out(norm(attention(q, k, v)))``."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        super().__init__(spec, traits, w, i, residual)
        n = spec.layers[i].n_heads * spec.v_head_dim
        self.sub_norm = RmsNorm(w.vector(f"blk.{i}.attn_sub_norm.weight", n), spec.norm_eps)

    def attend(self, q: Rows, cos_sin: Rows | None, slab: KvSlab, batch: Batch) -> Rows:
        return self.sub_norm(super().attend(q, cos_sin, slab, batch), self.out.integer)


class NormedGated(Gated):
    """``x += down(norm(silu(gate(h)) * up(h)))``."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int) -> None:
        n_ff = spec.layers[i].n_ff
        super().__init__(w, f"blk.{i}.", spec.n_embd, n_ff, traits, Residual())
        self.sub_norm = RmsNorm(w.vector(f"blk.{i}.ffn_sub_norm.weight", n_ff), spec.norm_eps)

    def hidden(self, h: Rows, batch: Batch) -> Rows:
        y = gated(h, self.gate, self.up, self.activation, False, self.limit, batch)
        return self.sub_norm(y, self.down.integer)


class BitNetLayer(Layer):
    def read_ffn(self, spec: ModelSpec, traits: Traits, w: Weights, i: int) -> FeedForward:
        return NormedGated(spec, traits, w, i)


def build(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, traits, w, context_size, NormedAttention, BitNetLayer)


register(Architecture("bitnet", "BitNet b1.58 (SiLU)", Traits(rope="neox"), build=build))
