"""Gemma 3n: several residual streams of which layers change one, low-rank branches, and sparse activations.

Google, "Gemma 3n", 2025; Baykal et al., "Alternating Updates for Efficient Transformers", 2023. Embeddings of each
layer and shared keys and values are Gemma 4's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.gguf import GGUFFile, Metadata
from oxillama.kernels.activations import geglu_
from oxillama.kernels.batch import Batch
from oxillama.kernels.matmul import linear, matmul
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rope import angles
from oxillama.kernels.rows import Rows, add_, add_scaled_, scale_, softcap_, take_rows, zeros
from oxillama.kernels.ssm import columns
from oxillama.kernels.streams import add_weighted_, match_magnitude_, mul_columns_, take_above_
from oxillama.models.decoder import Decoder, Layer, ReadMixer, read_residual
from oxillama.models.gemma4 import (
    MAX_WIDTH,
    PerLayerBranch,
    PerLayerEmbeddings,
    lenders,
    read_attention,
    read_gemma4,
)
from oxillama.models.layers import FeedForward, Gated, LayerSlabs, RmsNorm
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

DEVIATIONS = "activation_sparsity_scale"
MAX_DEVIATIONS, MAX_STREAMS = 100.0, 16
LEAST = 1e-5  # mean square that a stream is taken to have before it is scaled


def read_gemma3n(file: GGUFFile, traits: Traits) -> ModelSpec:
    m = file.metadata
    active = m.get_int(f"{m.arch}.altup.active_idx", 0)
    if active:
        raise UnsupportedModelError(f"{m.arch}.altup.active_idx is {active}; layers are only computed with stream 0")
    m.get_int(f"{m.arch}.attention.shared_kv_layers")  # which is not 0 where it is missing
    spec = read_gemma4(file, traits)
    read_deviations(m, spec)
    return spec


def read_deviations(m: Metadata, spec: ModelSpec) -> list[float]:
    """Standard deviations above the mean from which a layer's gates count; minus infinity: all do."""
    key = f"{spec.arch}.{DEVIATIONS}"
    values = [float(value) for value in m.get_array(key, float)]
    if len(values) != spec.n_layers:
        raise LoadError(f"{key} has {len(values)} values for {spec.n_layers} layers")
    for value in values:
        if value != -math.inf and not abs(value) <= MAX_DEVIATIONS:
            raise LoadError(f"{key} is {value}; it must be -inf or lie in -{MAX_DEVIATIONS:g}..{MAX_DEVIATIONS:g}")
    return values


class SparseGated(Gated):
    """``x += down(gelu(above(gate(h))) * up(h))``: of the gates only what lies far above their mean counts."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, deviations: float) -> None:
        p = f"blk.{i}."
        residual = read_residual(spec, traits, w, p + "post_ffw_norm")
        super().__init__(w, p, spec.n_embd, spec.layers[i].n_ff, traits, residual)
        self.deviations = deviations

    def hidden(self, h: Rows, batch: Batch) -> Rows:
        gate, up = matmul(h, self.gate, self.up, batch=batch)
        take_above_(gate, self.deviations)
        return geglu_(gate, up)


class LowRank:
    """``h + norm(right(left(h)))``: "learned augmented residual", of the normalised input ``h``."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int) -> None:
        left = "blk.0.laurel_l.weight"  # no key has the rank
        rank = w.n_values(left) // spec.n_embd if left in w else 0
        self.left = w.linear(f"blk.{i}.laurel_l", rank, spec.n_embd)
        self.right = w.linear(f"blk.{i}.laurel_r", spec.n_embd, rank)
        self.norm = RmsNorm(w.vector(f"blk.{i}.laurel_post_norm.weight", spec.n_embd), spec.norm_eps)

    def add_to(self, x: Rows, h: Rows, batch: Batch) -> None:
        add_(x, h)
        add_(x, self.norm(linear(linear(h, self.left, batch), self.right, batch)))


class Gemma3nLayer(Layer):
    """``x = (x + norm(attention(h)) + low_rank(h)) / sqrt(2); x += norm(feed_forward(norm(x)))``, h being norm(x)."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, read_mixer: ReadMixer) -> None:
        super().__init__(spec, traits, w, i, read_mixer)
        self.low_rank = LowRank(spec, w, i)

    def read_ffn(self, spec: ModelSpec, traits: Traits, w: Weights, i: int) -> FeedForward:
        least = read_deviations(w.metadata, spec)[i]
        return super().read_ffn(spec, traits, w, i) if least == -math.inf else SparseGated(spec, traits, w, i, least)

    def forward(self, x: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        h = self.attn_norm(x, self.mixer.codes)
        self.mixer.add_to(x, h, cos_sin, slabs, batch)
        self.finish(x, h, batch)

    def outputs(self, x: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> Rows:
        """The last layer: all rows store their state, but only those of the output are computed further."""
        if batch.outputs is batch:
            self.forward(x, cos_sin, slabs, batch)
            return x
        h = self.attn_norm(x, self.mixer.codes)
        x = take_rows(x, batch.output_rows)
        self.mixer.add_outputs_to(x, h, cos_sin, slabs, batch)
        if x.n:
            self.finish(x, take_rows(h, batch.output_rows), batch.outputs)
        return x

    def finish(self, x: Rows, h: Rows, batch: Batch) -> None:
        self.low_rank.add_to(x, h, batch)
        scale_(x, 2**-0.5)
        self.ffn.add_to(x, self.ffn_input(x, h), batch)


class AlternatingUpdates:
    """Predictions of the streams that a layer doesn't change, corrected by how far the one changed."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int, n: int) -> None:
        p, n_embd = f"blk.{i}.altup_", spec.n_embd
        self.n, self.n_embd = n, n_embd
        self.norm = RmsNorm(w.vector(p + "router_norm.weight", n_embd), spec.norm_eps)
        self.router = w.linear(p + "router", n, n_embd)
        self.predicting, self.correcting = w.linear(p + "predict_coef", n * n, n), w.linear(p + "correct_coef", n, n)
        self.scale = w.vector(p + "correct_scale.weight", n_embd)

    def routed(self, x: Rows, w: Matrix, batch: Batch) -> Rows:
        """Weights of sums, Rows [x.n, w.n_out], for a stream."""
        h = self.norm(x)
        scale_(h, 1 / self.n_embd)
        m = linear(h, self.router, batch)
        softcap_(m, 1.0)  # the hyperbolic tangent
        return linear(m, w, batch)

    def predict(self, streams: Sequence[Rows], batch: Batch) -> None:
        """Adds to each stream its weighted sum of all of them, in place."""
        weights = self.routed(streams[0], self.predicting, batch)
        sums = [zeros(x.workspace, x.n, x.dim) for x in streams]
        for i, total in enumerate(sums):
            for j, x in enumerate(streams):
                add_weighted_(total, x, weights, i * self.n + j)
        for x, total in zip(streams, sums, strict=True):
            add_(x, total)

    def correct(self, streams: Sequence[Rows], x: Rows, batch: Batch) -> None:
        """``x``: what the layer made of the first stream's prediction; it becomes the difference."""
        weights = self.routed(x, self.correcting, batch)
        add_scaled_(x, streams[0], -1.0)
        for i, stream in enumerate(streams):
            add_(stream, x)
            add_weighted_(stream, x, weights, i)

    def scaled(self, streams: Sequence[Rows]) -> Rows:
        """A copy of the first stream for what comes after."""
        x = copied(streams[0])
        mul_columns_(x, self.scale)
        return x


def copied(x: Rows) -> Rows:
    return columns(x, 0, x.dim)


class Gemma3n(Decoder):
    """The decoder over several streams, whose layers see the first."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        super().__init__(spec, traits, w, context_size, read_attention, Gemma3nLayer)
        m, n_layers = w.metadata, range(spec.n_layers)
        n = m.get_int(f"{spec.arch}.altup.num_inputs", minimum=2, maximum=MAX_STREAMS)
        width = m.get_int(f"{spec.arch}.embedding_length_per_layer_input", minimum=1, maximum=MAX_WIDTH)
        self.lenders = lenders(spec)
        self.embeddings = PerLayerEmbeddings(spec, w, width)
        self.branches = [PerLayerBranch(spec, w, i, width) for i in n_layers]
        self.updates = [AlternatingUpdates(spec, w, i, n) for i in n_layers]
        self.begin = w.stack("altup_proj", n - 1, spec.n_embd, spec.n_embd)
        self.end = w.stack("altup_unembd_proj", n - 1, spec.n_embd, spec.n_embd)

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model; see `Decoder.forward`."""
        x = self.embedding.rows(batch)
        embeddings = self.embeddings.rows(x, batch)
        streams = [x, *(scaled_like(x, linear(x, w, batch)) for w in self.begin)]
        tables = [angles(batch, frequencies, magnitude) for frequencies, magnitude in self.rotations]
        for i, layer in enumerate(self.layers[:-1]):
            batch.poll()
            mark = batch.workspace.mark()
            self.updates[i].predict(streams, batch)
            x = copied(streams[0])
            layer.forward(x, layer.angles(tables), states[self.lenders[i]], batch)
            self.finish(i, streams, x, embeddings, batch)
            batch.workspace.release(mark)
        batch.poll()
        last = self.layers[-1]
        self.updates[-1].predict(streams, batch)
        x = last.outputs(copied(streams[0]), last.angles(tables), states[self.lenders[-1]], batch)
        if not x.n:
            return self.norm(x)
        if batch.outputs is not batch:
            streams = [take_rows(stream, batch.output_rows) for stream in streams]
            embeddings = take_rows(embeddings, batch.output_rows)
        self.finish(len(self.layers) - 1, streams, x, embeddings, batch.outputs)
        return self.norm(self.joined(streams, batch.outputs))

    def finish(self, i: int, streams: Sequence[Rows], x: Rows, embeddings: Rows, batch: Batch) -> None:
        """Ends a layer: its result ``x`` corrects all streams, its embeddings change all but the first."""
        self.updates[i].correct(streams, x, batch)
        y = self.branches[i].output(self.updates[i].scaled(streams), embeddings, batch)
        for stream in streams[1:]:
            add_(stream, y)

    def joined(self, streams: Sequence[Rows], batch: Batch) -> Rows:
        """The mean of the first and of what the others are projected to."""
        first, *others = streams
        total = copied(first)
        for stream, w in zip(others, self.end, strict=True):
            add_(total, scaled_like(first, linear(stream, w, batch)))
        scale_(total, 1 / len(streams))
        return total


def scaled_like(first: Rows, x: Rows) -> Rows:
    """``x`` with the root mean square that ``first`` has."""
    match_magnitude_(x, first, LEAST)
    return x
