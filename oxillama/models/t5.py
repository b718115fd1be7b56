"""T5: an encoder, alone or read by a decoder; scores of attention have a bias that depends on the distance.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020; Shazeer, "GLU
Variants Improve Transformer", 2020 (T5 1.1); Chung et al., "UniMax", 2023 (UMT5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from oxillama._util.rounded import log
from oxillama.errors import UnsupportedModelError
from oxillama.gguf import GGUFFile
from oxillama.gguf.source import FileSource
from oxillama.kernels import elementary
from oxillama.kernels.attention import Attention, KvSlab, attend, store
from oxillama.kernels.batch import Batch
from oxillama.kernels.matmul import linear, linear_add_, matmul
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Rows, take_rows
from oxillama.layer_state import KvShape
from oxillama.models.adaptable import Adaptable
from oxillama.models.classifier import Classifier
from oxillama.models.decoder import look_up
from oxillama.models.encoder import check_whole, no_logits
from oxillama.models.layers import FeedForward, Gated, LayerSlabs, Plain, Residual, read_norm
from oxillama.models.spec import LayerSpec, ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import COMMON, Weights

MAX_DISTANCE = 128  # from which on all distances share a bucket: no key says otherwise
MAX_BUCKETS = 255  # of which the half that stands for single distances ends before that

Bias = NDArray[np.float32]  # [heads, 2 * MAX_DISTANCE + 1], of distances from -MAX_DISTANCE on


class Encoder:
    """``norm(layers(embedding(tokens)))``. Keys and values are forgotten: all layers use the first's slab."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        self.spec = spec
        self.table = w.table("token_embd.weight", (spec.n_vocab, spec.n_embd))
        n_layers = w.metadata.get_int(f"{spec.arch}.block_count")
        biases = read_biases(spec, w, "enc", n_layers, both_ways=True)
        self.layers = [EncoderLayer(spec, traits, w, f"enc.blk.{i}.", bias) for i, bias in enumerate(biases)]
        self.norm = read_norm(w, "enc.output_norm", spec.n_embd, traits.norm, spec.norm_eps)
        self.n_weight_bytes, self.arithmetic = 0, COMMON
        self.mapped: Sequence[FileSource] = ()
        self.adaptable: Mapping[str, Adaptable] = {}
        self.classifier: Classifier | None = None

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model: Rows [batch.outputs.n_rows, n_embd].

        Raises ConfigError for a part of a sequence: its tokens would not see the others.
        """
        check_whole(self.spec, batch)
        (slab,) = states[0]
        x = self.run(slab, batch)
        return self.norm(x if batch.outputs is batch else take_rows(x, batch.output_rows))

    def run(self, slab: KvSlab, batch: Batch) -> Rows:
        """All layers, whose keys and values are left in ``slab``: Rows [batch.n_rows, n_embd] before the last norm."""
        x = look_up(batch, self.table, batch.tokens)
        for layer in self.layers:
            batch.poll()
            mark = batch.workspace.mark()
            layer.forward(x, slab, batch)
            batch.workspace.release(mark)
        return x

    def logits(self, hidden: Rows, batch: Batch) -> Rows:
        """Raises GenerateError: there are none."""
        raise no_logits(self.spec)


class EncoderLayer:
    """``x += attention(norm(x)); x += feed_forward(norm(x))``, in place."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, prefix: str, bias: Bias) -> None:
        self.attn_norm, self.ffn_norm = (
            read_norm(w, prefix + name, spec.n_embd, traits.norm, spec.norm_eps) for name in ("attn_norm", "ffn_norm")
        )
        self.attention = BiasedAttention(spec, w, prefix, bias, causal=False)
        self.ffn = read_ffn(spec, traits, w, prefix)

    def forward(self, x: Rows, slab: KvSlab, batch: Batch) -> None:
        self.attention.add_to(x, self.attn_norm(x, self.attention.codes), slab, batch)
        self.ffn.add_to(x, self.ffn_norm(x, self.ffn.codes), batch)


class BiasedAttention:
    """``x += out(attention(q(h), k(h), v(h)))``, whose scores are not scaled."""

    def __init__(self, spec: ModelSpec, w: Weights, prefix: str, bias: Bias, *, causal: bool) -> None:
        self.q, self.k, self.v, self.out = read_projections(spec, w, f"{prefix}attn")
        self.codes = self.q.integer
        self.rule = Attention(1.0, bias=bias, causal=causal)

    def add_to(self, x: Rows, h: Rows, slab: KvSlab, batch: Batch) -> None:
        q, k, v = matmul(h, self.q, self.k, self.v, batch=batch)
        store(k, v, slab, batch)
        linear_add_(x, attend(q, slab, batch, self.rule), self.out, batch)

    def add_outputs_to(self, x: Rows, h: Rows, slab: KvSlab, batch: Batch) -> None:
        """The last layer: all rows store keys and values, but ``x`` has only the rows of the output."""
        k, v = matmul(h, self.k, self.v, batch=batch)
        store(k, v, slab, batch)
        if x.n:
            q = linear(take_rows(h, batch.output_rows), self.q, batch.outputs)
            linear_add_(x, attend(q, slab, batch.outputs, self.rule), self.out, batch.outputs)


def read_projections(spec: ModelSpec, w: Weights, name: str) -> list[Matrix]:
    """The matrices of queries, keys, values, and of what comes out."""
    layer = spec.layers[0]
    sizes = {"q": layer.n_heads * spec.head_dim, "k": layer.n_kv_heads * spec.head_dim}
    sizes["v"] = layer.n_kv_heads * spec.v_head_dim
    found = [w.linear(f"{name}_{part}", n, spec.n_embd) for part, n in sizes.items()]
    return [*found, w.linear(f"{name}_o", spec.n_embd, layer.n_heads * spec.v_head_dim)]


def read_ffn(spec: ModelSpec, traits: Traits, w: Weights, prefix: str) -> FeedForward:
    """Feed-forward part, with a gate where the file has one: GELU's (T5 1.1), and else ReLU's without (T5 1.0)."""
    n_ff = spec.layers[0].n_ff
    if w.has(f"{prefix}ffn_gate.weight"):
        return Gated(w, prefix, spec.n_embd, n_ff, traits, Residual())
    return Plain(w, prefix, spec.n_embd, n_ff, replace(traits, activation="relu"), Residual())


def read_biases(spec: ModelSpec, w: Weights, part: str, n_layers: int, *, both_ways: bool) -> list[Bias]:
    """Biases that each layer adds to its scores: by the first layer's table, where a layer has none of its own."""
    key = f"{spec.arch}.attention.relative_buckets_count"
    n_buckets = w.metadata.get_int(key, minimum=4, maximum=MAX_BUCKETS)
    buckets = buckets_of_distances(n_buckets, both_ways=both_ways)
    found: list[Bias] = []
    for i in range(n_layers):
        name = f"{part}.blk.{i}.attn_rel_b.weight"
        if i and name not in w:
            found.append(found[0])
        else:
            found.append(np.ascontiguousarray(w.values(name, n_buckets, spec.n_heads)[buckets].T))
    return found


def buckets_of_distances(n_buckets: int, *, both_ways: bool) -> NDArray[np.int64]:
    """Bucket of each distance of a key from its query, from -MAX_DISTANCE to MAX_DISTANCE.

    Half of them stand for single distances, and half for ranges whose ends grow in proportion, to MAX_DISTANCE. Both
    ways, the upper half of all buckets is that of keys after the query; else these are never seen, and in the first.
    """
    distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    n = n_buckets // 2 if both_ways else n_buckets
    away = np.abs(distances) if both_ways else np.maximum(-distances, 0)
    exact = n // 2
    near = np.maximum(away, 1).astype(np.float32) / np.float32(exact)
    steps = elementary.log(near).astype(np.float32) / np.float32(log(MAX_DISTANCE / exact))
    far = np.minimum(exact + (steps * np.float32(n - exact)).astype(np.int64), n - 1)
    found: NDArray[np.int64] = np.where(away < exact, away, far) + (distances > 0) * (n * both_ways)
    return found


def read_t5_encoder(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Hyper-parameters of an encoder alone, with room for the keys and values of one layer at a time."""
    spec = read_spec(file, traits)
    layer = common_layer(spec)
    shape = KvShape(layer.n_kv_heads, spec.head_dim, spec.v_head_dim)
    return replace(spec, states=((shape,), *((),) * (spec.n_layers - 1)))


def common_layer(spec: ModelSpec) -> LayerSpec:
    """Properties that all layers share. Raises UnsupportedModelError if they differ."""
    if len(set(spec.layers)) > 1:
        raise UnsupportedModelError(f"attention.head_count or feed_forward_length differ between layers of {spec.arch}")
    return spec.layers[0]
