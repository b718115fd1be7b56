"""Self-attention as decoders have it: projections, head norms, rotation, softmax over keys and values of the past."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oxillama._util.rounded import power
from oxillama.errors import MissingTensorError
from oxillama.kernels.attention import Attention, KvSlab, attend, store
from oxillama.kernels.batch import Batch
from oxillama.kernels.matmul import linear, matmul
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.norms import layer_norm_heads_, rms_norm_heads_
from oxillama.kernels.rope import rotate_, sharpen_
from oxillama.kernels.rows import Rows, Vector, clamp_, scale_, take_rows
from oxillama.models.layers import LayerSlabs, Residual
from oxillama.models.spec import LayerSpec, ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


class SelfAttention:
    """``x += out(attention(q, k, v))`` of one layer."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        p, layer = f"blk.{i}.", spec.layers[i]
        self.q, self.k, self.v = self.read_projections(spec, layer, traits, w, p)
        self.out = w.linear(p + "attn_output", spec.n_embd, layer.n_heads * spec.v_head_dim, bias="o" in traits.biased)
        self.q_norm = read_head_norm(w, p + "attn_q_norm.weight", layer.n_heads, spec, traits)
        self.k_norm = self.read_key_norm(spec, layer, traits, w, p)
        self.head_dim, self.neox, self.eps = spec.head_dim, traits.rope == "neox", spec.norm_eps
        self.clamp, self.sharpening = spec.scales.clamp_qkv, spec.scales.sharpening
        self.steps = spec.scales.sharpening_length, spec.scales.sharpening_offset
        self.codes, self.residual = self.q.integer, residual
        self.norm_last, self.value_scale = traits.qk_norm_last, spec.scales.value
        self.rule = attention_rule(spec, layer, traits, w, p)

    def read_projections(
        self, spec: ModelSpec, layer: LayerSpec, traits: Traits, w: Weights, prefix: str
    ) -> list[Matrix]:
        """The matrices of queries, keys and values."""
        return read_projections(spec, layer, traits, w, prefix)

    def read_key_norm(
        self, spec: ModelSpec, layer: LayerSpec, traits: Traits, w: Weights, prefix: str
    ) -> HeadNorm | None:
        return read_head_norm(w, prefix + "attn_k_norm.weight", layer.n_kv_heads, spec, traits)

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        (slab,) = slabs
        q, k, v = matmul(h, self.q, self.k, self.v, batch=batch)
        self.remember(k, v, cos_sin, slab, batch)
        self.add_attended(x, q, cos_sin, slab, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """The last layer: all rows store keys and values, but ``x`` has only the rows of the output."""
        (slab,) = slabs
        k, v = self.keys_and_values(h, batch)
        self.remember(k, v, cos_sin, slab, batch)
        if x.n:
            angles = None if cos_sin is None else take_rows(cos_sin, batch.output_rows)
            q = linear(take_rows(h, batch.output_rows), self.q, batch.outputs)
            self.add_attended(x, q, angles, slab, batch.outputs)

    def keys_and_values(self, h: Rows, batch: Batch) -> list[Rows]:
        return matmul(h, self.k, self.v, batch=batch)

    def remember(self, k: Rows, v: Rows, cos_sin: Rows | None, slab: KvSlab, batch: Batch) -> None:
        self.prepare(k, self.k_norm, cos_sin)
        if self.clamp:
            clamp_(v, self.clamp)
        if self.value_scale != 1.0:
            scale_(v, self.value_scale)
        store(k, v, slab, batch)

    def add_attended(self, x: Rows, q: Rows, cos_sin: Rows | None, slab: KvSlab, batch: Batch) -> None:
        """Adds what the past gives the queries ``q``, which are as their matrix made them."""
        self.residual.add_product(x, self.attend(q, cos_sin, slab, batch), self.out, batch)

    def attend(self, q: Rows, cos_sin: Rows | None, slab: KvSlab, batch: Batch) -> Rows:
        """Attends from the queries ``q`` to the past: Rows [q.n, heads * v_head_dim]."""
        self.prepare(q, self.q_norm, cos_sin)
        if self.sharpening:
            sharpen_(q, batch, self.sharpening, *self.steps)
        return attend(q, slab, batch, self.rule)

    def prepare(self, x: Rows, norm: HeadNorm | None, cos_sin: Rows | None) -> None:
        """Queries or keys before they meet: clamped, normalised, rotated; or rotated, then normalised."""
        if self.clamp:
            clamp_(x, self.clamp)
        if norm is not None and not self.norm_last:
            norm(x, self.eps)
        if cos_sin is not None:
            rotate_(x, cos_sin, self.head_dim, self.neox)
        if norm is not None and self.norm_last:
            norm(x, self.eps)


class HeadNorm:
    """RMS norm of each run of ``weight.n`` values: of heads, or of the whole row."""

    def __init__(self, weight: Vector) -> None:
        self.weight = weight

    def __call__(self, x: Rows, eps: float) -> None:
        rms_norm_heads_(x, self.weight, eps)


class EachHeadNorm(HeadNorm):
    """Layer norm of each head, with a weight of its own and no bias (Command R+, StableLM 2 12B)."""

    def __init__(self, weight: Vector, head_dim: int) -> None:
        super().__init__(weight)
        self.head_dim = head_dim

    def __call__(self, x: Rows, eps: float) -> None:
        layer_norm_heads_(x, self.weight, self.head_dim, eps)


def read_head_norm(w: Weights, name: str, n_heads: int, spec: ModelSpec, traits: Traits) -> HeadNorm | None:
    if traits.qk_norm == "head" or (traits.qk_norm == "some" and w.has(name)):
        return HeadNorm(w.vector(name, spec.head_dim))
    if traits.qk_norm == "plain":
        return HeadNorm(Vector(np.ones(spec.head_dim, np.float32)))
    if traits.qk_norm == "whole":
        return HeadNorm(w.vector(name, n_heads * spec.head_dim))
    if traits.qk_norm == "each_head" and w.has(name):
        return EachHeadNorm(Vector(w.values(name, n_heads, spec.head_dim)), spec.head_dim)
    return None


def read_projections(spec: ModelSpec, layer: LayerSpec, traits: Traits, w: Weights, prefix: str) -> list[Matrix]:
    """Queries, keys and values: three tensors, or one that holds them one below the other."""
    sizes = (layer.n_heads * spec.head_dim, layer.n_kv_heads * spec.head_dim, layer.n_kv_heads * spec.v_head_dim)
    if f"{prefix}attn_qkv.weight" in w:
        return w.linears(f"{prefix}attn_qkv", sizes, spec.n_embd, bias="q" in traits.biased)
    if f"{prefix}attn_q.weight" not in w:
        raise MissingTensorError(f"tensor {prefix}attn_q.weight is missing, and so is {prefix}attn_qkv.weight")
    parts = zip("qkv", sizes, strict=True)
    return [w.linear(f"{prefix}attn_{part}", n, spec.n_embd, bias=part in traits.biased) for part, n in parts]


def attention_rule(spec: ModelSpec, layer: LayerSpec, traits: Traits, w: Weights, prefix: str) -> Attention:
    scale = spec.scales.attention or spec.head_dim**-0.5
    if traits.attention_scale is not None:
        scale = traits.attention_scale(spec)
    sinks = f"{prefix}attn_sinks.weight"
    return Attention(
        scale,
        window=layer.window,
        softcap=spec.scales.attention_cap,
        slopes=alibi_slopes(layer.n_heads, spec.scales.alibi) if traits.alibi else None,
        sinks=w.vector(sinks, layer.n_heads).numpy() if traits.sinks is True or (traits.sinks and sinks in w) else None,
        causal=spec.causal,
        chunked=traits.chunked,
    )


def alibi_slopes(n_heads: int, largest: float = 8.0) -> NDArray[np.float32]:
    """A geometric series to 2**-largest over n heads, the largest power of two; others take odd powers of its root.

    Press et al., "Train Short, Test Long", 2021, and the authors' code for other numbers of heads.
    """
    n = 1 << (n_heads.bit_length() - 1)
    slopes = [power(2.0, -largest * (i + 1) / n) for i in range(n)]
    slopes += [power(2.0, -largest / 2 * (2 * i + 1) / n) for i in range(n_heads - n)]
    return np.array(slopes, np.float32)
