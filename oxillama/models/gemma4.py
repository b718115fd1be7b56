"""Gemma 4's layers: embeddings of each layer, keys and values shared by layers, experts beside a dense network.

Google, "Gemma 4", 2026, after "Gemma 3n", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from oxillama.errors import LoadError, MissingTensorError
from oxillama.gguf import GGUFFile, Metadata
from oxillama.kernels.activations import geglu_
from oxillama.kernels.batch import Batch
from oxillama.kernels.experts import expert_add_
from oxillama.kernels.matmul import linear, matmul
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.norms import rms_norm_heads_
from oxillama.kernels.rope import angles
from oxillama.kernels.rows import Rows, Vector, add_, add_scaled_, mul_heads_, scale_, take_rows, zeros
from oxillama.kernels.ssm import columns
from oxillama.layer_state import KvShape, LayerShape
from oxillama.models.attention import HeadNorm, SelfAttention
from oxillama.models.decoder import Decoder, Layer, look_up
from oxillama.models.experts import Experts
from oxillama.models.layers import FeedForward, Gated, LayerSlabs, Mixer, Residual, RmsNorm
from oxillama.models.spec import LayerSpec, ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

MAX_WIDTH = 1 << 16


def read_gemma4(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Heads of layers with a window have a width of their own; the last layers keep nothing (see `lenders`)."""
    spec = read_spec(file, traits)
    n_shared = shared_layers(file.metadata, spec)
    states: list[LayerShape] = []
    for i, layer in enumerate(spec.layers):
        sizes = of_layer(spec, file.metadata, i)
        shape = KvShape(layer.n_kv_heads, sizes.head_dim, sizes.v_head_dim, layer.window)
        states.append(() if i >= spec.n_layers - n_shared else (shape,))
    spec = replace(spec, states=tuple(states))
    lenders(spec)
    return spec


def shared_layers(m: Metadata, spec: ModelSpec) -> int:
    """Number of last layers that read keys and values of others."""
    return m.get_int(f"{spec.arch}.attention.shared_kv_layers", 0, minimum=0, maximum=spec.n_layers - 1)


def of_layer(spec: ModelSpec, m: Metadata, i: int) -> ModelSpec:
    """The sizes of heads of one layer."""
    if not spec.layers[i].window:
        return spec
    p = f"{spec.arch}.attention."
    head_dim = m.get_int(p + "key_length_swa", spec.head_dim, minimum=1, maximum=1 << 12)
    v_head_dim = m.get_int(p + "value_length_swa", spec.v_head_dim, minimum=1, maximum=1 << 12)
    if spec.rope is not None and spec.rope.n_rot_windows > head_dim:
        raise LoadError(f"{p}key_length_swa is {head_dim}, but rope.dimension_count_swa is {spec.rope.n_rot_windows}")
    return replace(spec, head_dim=head_dim, v_head_dim=v_head_dim)


def lenders(spec: ModelSpec) -> list[int]:
    """Layer whose keys and values each layer reads: its own, or the last layer of its kind that has some."""
    found = []
    for i, layer in enumerate(spec.layers):
        kind = layer.window > 0
        own = [j for j in range(i + 1) if spec.states[j] and (spec.layers[j].window > 0) == kind]
        if not own:
            raise LoadError(
                f"{spec.arch}.attention.shared_kv_layers leaves layer {i} no layer of its kind that has keys and values"
            )
        found.append(i if spec.states[i] else own[-1])
    return found


def unweighted(n: int) -> Vector:
    return Vector(np.ones(n, np.float32))


class NormedAttention(SelfAttention):
    """Values are normalised too, without weights; where they have no matrix, they are what keys are made of."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        super().__init__(of_layer(spec, w.metadata, i), traits, w, i, residual)
        self.value_norm = HeadNorm(unweighted(of_layer(spec, w.metadata, i).v_head_dim))

    def read_projections(
        self, spec: ModelSpec, layer: LayerSpec, traits: Traits, w: Weights, prefix: str
    ) -> list[Matrix]:
        if f"{prefix}attn_v.weight" in w or f"{prefix}attn_qkv.weight" in w:
            return super().read_projections(spec, layer, traits, w, prefix)
        if spec.v_head_dim != spec.head_dim:
            raise MissingTensorError(
                f"tensor {prefix}attn_v.weight is missing; keys, of another size, can't stand for it"
            )
        q, k = (
            w.linear(f"{prefix}attn_{part}", n * spec.head_dim, spec.n_embd)
            for part, n in (("q", layer.n_heads), ("k", layer.n_kv_heads))
        )
        return [q, k, k]

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        (slab,) = slabs
        q, k, v = (linear(h, self.q, batch), *self.keys_and_values(h, batch))
        self.remember(k, v, cos_sin, slab, batch)
        self.residual.add_product(x, self.attend(q, cos_sin, slab, batch), self.out, batch)

    def keys_and_values(self, h: Rows, batch: Batch) -> list[Rows]:
        if self.v is self.k:
            k = linear(h, self.k, batch)
            v = columns(k, 0, k.dim)
        else:
            k, v = matmul(h, self.k, self.v, batch=batch)
        self.value_norm(v, self.eps)
        return [k, v]


class BorrowingAttention(SelfAttention):
    """Queries alone: keys and values are another layer's."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        super().__init__(of_layer(spec, w.metadata, i), traits, w, i, residual)
        w.leave_out(f"blk.{i}.attn_k_norm.weight")  # which some files have all the same
        for name in ("attn_k", "attn_v"):
            w.unread(f"blk.{i}.{name}.weight")

    def read_projections(
        self, spec: ModelSpec, layer: LayerSpec, traits: Traits, w: Weights, prefix: str
    ) -> list[Matrix]:
        q = w.linear(f"{prefix}attn_q", layer.n_heads * spec.head_dim, spec.n_embd)
        return [q, q, q]

    def read_key_norm(self, spec: ModelSpec, layer: LayerSpec, traits: Traits, w: Weights, prefix: str) -> None:
        return None

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        (slab,) = slabs
        q = linear(h, self.q, batch)
        self.residual.add_product(x, self.attend(q, cos_sin, slab, batch), self.out, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """The last layer, with only the rows of the output."""
        if x.n:
            (slab,) = slabs
            cos_sin = None if cos_sin is None else take_rows(cos_sin, batch.output_rows)
            q = linear(take_rows(h, batch.output_rows), self.q, batch.outputs)
            self.residual.add_product(x, self.attend(q, cos_sin, slab, batch.outputs), self.out, batch.outputs)


def read_attention(spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> Mixer:
    kind = NormedAttention if spec.states[i] else BorrowingAttention
    return kind(spec, traits, w, i, residual)


class DenseAndExperts:
    """``x += norm(norm_1(dense(h)) + norm_2(experts(norm(x))))``; the router reads a norm of ``x`` of its own."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int) -> None:
        assert spec.experts is not None
        p, n, eps = f"blk.{i}.", spec.n_embd, spec.norm_eps

        def norm(name: str) -> RmsNorm:
            return RmsNorm(w.vector(f"{p}{name}.weight", n), eps)

        self.dense = Gated(w, p, n, spec.layers[i].n_ff, traits, Residual())
        self.dense_norm, self.norm_before, self.norm_after = (
            norm(name) for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
        )
        self.experts = Experts(n, spec.experts, w, p, residual=Residual())
        scale = w.values(f"{p}ffn_gate_inp.scale", n) * np.float32(n**-0.5)
        self.router_norm = RmsNorm(Vector(scale), eps)
        self.expert_scale = w.values(f"{p}ffn_down_exps.scale", spec.experts.n_experts)
        self.residual, self.codes = Residual(norm("post_ffw_norm")), self.dense.codes

    def add_to(self, x: Rows, h: Rows, batch: Batch) -> None:
        y = zeros(x.workspace, x.n, x.dim)
        self.dense.add_to(y, h, batch)
        y = self.dense_norm(y)
        z = zeros(x.workspace, x.n, x.dim)
        routing = self.experts.route(self.router_norm(x), batch)
        hidden = self.experts.hidden(self.norm_before(x, self.experts.codes), routing, batch)
        scales = self.expert_scale[routing.experts.reshape(-1, 1)]
        mul_heads_(hidden, x.workspace.from_array(scales))
        expert_add_(z, hidden, routing, self.experts.down, batch)
        add_(y, self.norm_after(z))
        self.residual.add(x, y)


class PerLayerEmbeddings:
    """A short vector for each layer and token: of a table, and of the token's embedding."""

    def __init__(self, spec: ModelSpec, w: Weights, width: int) -> None:
        total = spec.n_layers * width
        self.width, self.n_embd, self.eps = width, spec.n_embd, spec.norm_eps
        self.table = w.table("per_layer_token_embd.weight", (spec.n_vocab, total))
        self.projection = w.linear("per_layer_model_proj", total, spec.n_embd)
        self.norm = w.vector("per_layer_proj_norm.weight", width)

    def rows(self, x: Rows, batch: Batch) -> Rows:
        """Embeddings of all layers side by side, Rows [x.n, n_layers * width], for embeddings ``x``."""
        y = linear(x, self.projection, batch)
        scale_(y, self.n_embd**-0.5)
        rms_norm_heads_(y, self.norm, self.eps)
        add_scaled_(y, look_up(batch, self.table, batch.tokens), self.width**0.5)
        scale_(y, 2**-0.5)
        return y


class PerLayerBranch:
    """``x += norm(proj(gelu(gate(x)) * p))``, ``p`` being the layer's embeddings."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int, width: int) -> None:
        p = f"blk.{i}."
        self.gate, self.proj = w.linear(p + "inp_gate", width, spec.n_embd), w.linear(p + "proj", spec.n_embd, width)
        self.norm = RmsNorm(w.vector(p + "post_norm.weight", spec.n_embd), spec.norm_eps)
        self.first, self.width = i * width, width

    def output(self, x: Rows, embeddings: Rows, batch: Batch) -> Rows:
        hidden = geglu_(linear(x, self.gate, batch), columns(embeddings, self.first, self.width))
        return self.norm(linear(hidden, self.proj, batch))


class Gemma4Layer(Layer):
    def read_ffn(self, spec: ModelSpec, traits: Traits, w: Weights, i: int) -> FeedForward:
        if spec.experts is not None and f"blk.{i}.ffn_gate_inp.weight" in w:
            return DenseAndExperts(spec, traits, w, i)
        return super().read_ffn(spec, traits, w, i)


class Gemma4(Decoder):
    """The decoder with what its layers add to it."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        super().__init__(spec, traits, w, context_size, read_attention, Gemma4Layer)
        key = f"{spec.arch}.embedding_length_per_layer_input"
        width = w.metadata.get_int(key, 0, minimum=0, maximum=MAX_WIDTH)
        self.lenders = lenders(spec)
        self.embeddings = PerLayerEmbeddings(spec, w, width) if width else None
        self.branches = [PerLayerBranch(spec, w, i, width) for i in range(spec.n_layers)] if width else []
        self.scales = [layer_scale(w, i) for i in range(spec.n_layers)]

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model; see `Decoder.forward`."""
        x = self.embedding.rows(batch)
        embeddings = None if self.embeddings is None else self.embeddings.rows(x, batch)
        tables = [angles(batch, frequencies, magnitude) for frequencies, magnitude in self.rotations]
        for i, layer in enumerate(self.layers[:-1]):
            batch.poll()
            mark = batch.workspace.mark()
            layer.forward(x, layer.angles(tables), states[self.lenders[i]], batch)
            self.finish(i, x, embeddings, batch)
            batch.workspace.release(mark)
        batch.poll()
        last = self.layers[-1]
        x = last.outputs(x, last.angles(tables), states[self.lenders[-1]], batch)
        if x.n:
            if embeddings is not None and batch.outputs is not batch:
                embeddings = take_rows(embeddings, batch.output_rows)
            self.finish(len(self.layers) - 1, x, embeddings, batch.outputs)
        return self.norm(x)

    def finish(self, i: int, x: Rows, embeddings: Rows | None, batch: Batch) -> None:
        """Ends a layer after its two parts, in place."""
        if embeddings is not None:
            add_(x, self.branches[i].output(x, embeddings, batch))
        if self.scales[i] != 1.0:
            scale_(x, self.scales[i])


def layer_scale(w: Weights, i: int) -> float:
    name = f"blk.{i}.layer_output_scale.weight"
    return float(w.values(name, 1)[0]) if w.has(name) else 1.0
