"""The Llama family: llama (with Mistral, Mixtral and all that carry its name), qwen2, qwen2moe, qwen3, qwen3moe.

Touvron et al., "LLaMA", 2023; Jiang et al., "Mixtral of Experts", 2024; the Qwen2 and Qwen3 technical reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.attention import Attention, KvSlab, attend, store
from oxillama.kernels.batch import Batch
from oxillama.kernels.matmul import embed, linear, linear_add_, matmul
from oxillama.kernels.rope import angles, rotate_
from oxillama.kernels.rows import Rows, rms_norm, rms_norm_heads_, take_rows
from oxillama.models.layers import feed_forward
from oxillama.models.registry import LayerSlabs, register
from oxillama.models.spec import ModelSpec
from oxillama.models.weights import Weights


@dataclass(frozen=True)
class Traits:
    """What distinguishes the members of the family and doesn't stand in metadata."""

    neox: bool  # rotation pairs halves of a head rather than neighbours
    qkv_bias: bool = False  # is part of the model; otherwise it may be missing
    qk_norm: bool = False  # each head of queries and keys is normalised


TRAITS = {
    "llama": Traits(neox=False),
    "qwen2": Traits(neox=True, qkv_bias=True),
    "qwen2moe": Traits(neox=True, qkv_bias=True),
    "qwen3": Traits(neox=True, qk_norm=True),
    "qwen3moe": Traits(neox=True, qk_norm=True),
}


@register(*TRAITS)
class Llama:
    """Embedding, layers, norm, output."""

    def __init__(self, spec: ModelSpec, w: Weights, context_size: int) -> None:
        self.spec = spec
        table = w.tensor("token_embd.weight", (spec.n_vocab, spec.n_embd))
        self.embedding, self.embedding_type = table.data, table.type
        self.layers = [Layer(spec, w, i) for i in range(spec.n_layers)]
        self.output_norm = w.vector("output_norm.weight", spec.n_embd)
        tied = "output.weight" not in w
        self.output = w.matrix("token_embd.weight" if tied else "output.weight", spec.n_vocab, spec.n_embd)
        self.frequencies = spec.rope.frequencies(rope_factors(spec, w, context_size))
        self.n_weight_bytes = w.n_bytes

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model, after the final norm: Rows [batch.outputs.n_rows, n_embd]."""
        workspace = batch.workspace
        kv = [cast(KvSlab, slab) for (slab,) in states]
        x = embed(workspace, self.embedding, self.embedding_type, self.spec.n_embd, batch.tokens)
        cos_sin = angles(batch, self.frequencies, self.spec.rope.magnitude)
        for layer, slab in zip(self.layers[:-1], kv[:-1], strict=True):
            batch.poll()
            mark = workspace.mark()
            layer.forward(x, cos_sin, slab, batch)
            workspace.release(mark)
        batch.poll()
        x = self.layers[-1].outputs(x, cos_sin, kv[-1], batch)
        return rms_norm(x, self.output_norm, self.spec.norm_eps)

    def logits(self, hidden: Rows) -> Rows:
        """Scores over the vocabulary: Rows [hidden.n, n_vocab]."""
        return linear(hidden, self.output)


class Layer:
    """``x += attention(norm(x)); x += feed_forward(norm(x))``, in place."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int) -> None:
        q_dim, kv_dim, p = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim, f"blk.{i}."
        traits = TRAITS[spec.arch]
        self.head_dim, self.neox, self.eps = spec.head_dim, traits.neox, spec.norm_eps
        self.rule = Attention(spec.head_dim**-0.5, window=spec.window)
        self.attn_norm = w.vector(p + "attn_norm.weight", spec.n_embd)
        self.q = w.linear(p + "attn_q", q_dim, spec.n_embd, bias=traits.qkv_bias)
        self.k = w.linear(p + "attn_k", kv_dim, spec.n_embd, bias=traits.qkv_bias)
        self.v = w.linear(p + "attn_v", kv_dim, spec.n_embd, bias=traits.qkv_bias)
        self.q_norm = w.vector(p + "attn_q_norm.weight", spec.head_dim) if traits.qk_norm else None
        self.k_norm = w.vector(p + "attn_k_norm.weight", spec.head_dim) if traits.qk_norm else None
        self.o = w.linear(p + "attn_output", spec.n_embd, q_dim)
        self.ffn_norm = w.vector(p + "ffn_norm.weight", spec.n_embd)
        self.ffn = feed_forward(spec, w, p)

    def forward(self, x: Rows, cos_sin: Rows, slab: KvSlab, batch: Batch) -> None:
        h = rms_norm(x, self.attn_norm, self.eps, self.q.integer)
        q, k, v = matmul(h, self.q, self.k, self.v)
        self.remember(k, v, cos_sin, slab, batch)
        self.attend(x, q, cos_sin, slab, batch)
        self.ffn.add_to(x, rms_norm(x, self.ffn_norm, self.eps, self.ffn.codes))

    def outputs(self, x: Rows, cos_sin: Rows, slab: KvSlab, batch: Batch) -> Rows:
        """As the last layer: all rows leave keys and values, but only those that are asked for go on."""
        if batch.outputs is batch:
            self.forward(x, cos_sin, slab, batch)
            return x
        h = rms_norm(x, self.attn_norm, self.eps, self.k.integer)
        k, v = matmul(h, self.k, self.v)
        self.remember(k, v, cos_sin, slab, batch)
        x, h, cos_sin = (take_rows(rows, batch.output_rows) for rows in (x, h, cos_sin))
        if x.n:
            self.attend(x, linear(h, self.q), cos_sin, slab, batch.outputs)
            self.ffn.add_to(x, rms_norm(x, self.ffn_norm, self.eps, self.ffn.codes))
        return x

    def remember(self, k: Rows, v: Rows, cos_sin: Rows, slab: KvSlab, batch: Batch) -> None:
        if self.k_norm is not None:
            rms_norm_heads_(k, self.k_norm, self.eps)
        rotate_(k, cos_sin, self.head_dim, self.neox)
        store(k, v, slab, batch)

    def attend(self, x: Rows, q: Rows, cos_sin: Rows, slab: KvSlab, batch: Batch) -> None:
        if self.q_norm is not None:
            rms_norm_heads_(q, self.q_norm, self.eps)
        rotate_(q, cos_sin, self.head_dim, self.neox)
        linear_add_(x, attend(q, slab, batch, self.rule), self.o)


def rope_factors(spec: ModelSpec, w: Weights, context_size: int) -> NDArray[np.float32] | None:
    """Divisors of the rotary frequencies: Llama-3's, or LongRoPE's for the context in use."""
    n = spec.rope.n_rot // 2
    chosen = None
    if spec.rope.scaling == "longrope":
        long, short = w.vector("rope_factors_long.weight", n), w.vector("rope_factors_short.weight", n)
        chosen = long if context_size > spec.rope.original_context else short
    elif "rope_freqs.weight" in w:
        chosen = w.vector("rope_freqs.weight", n)
    return None if chosen is None else chosen.numpy()
