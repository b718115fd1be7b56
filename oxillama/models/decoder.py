"""The transformer that most models are, read from top to bottom: embedding, layers, norm, output.

Members of the family differ by `Traits`, which their file in `families/` gives, and by what metadata say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.gguf.source import FileSource
from oxillama.kernels.batch import Batch
from oxillama.kernels.matmul import linear
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rope import angles
from oxillama.kernels.rows import Rows, Vector, add_, scale_, softcap_, take_rows
from oxillama.models.adaptable import Adaptable
from oxillama.models.attention import SelfAttention
from oxillama.models.classifier import Classifier
from oxillama.models.experts import Experts, LatentExperts
from oxillama.models.layers import (
    FeedForward,
    Gated,
    LayerSlabs,
    Mixer,
    NoFeedForward,
    Norm,
    Plain,
    Residual,
    RmsNorm,
    read_norm,
)
from oxillama.models.spec import ModelSpec
from oxillama.models.table import Table
from oxillama.models.traits import Traits
from oxillama.models.weighed_input import WeighedInput
from oxillama.models.weights import COMMON, Weights

ReadMixer = Callable[[ModelSpec, Traits, Weights, int, Residual], Mixer]


class Decoder:
    """``logits = output(norm(layers(embedding(tokens))))``."""

    def __init__(
        self,
        spec: ModelSpec,
        traits: Traits,
        w: Weights,
        context_size: int,
        read_mixer: ReadMixer = SelfAttention,
        layer: type[Layer] | None = None,
    ) -> None:
        layer = layer or Layer
        self.spec = spec
        self.embedding = Embedding(spec, traits, w)
        self.rotations = read_rotations(spec, traits, w, context_size)
        self.layers = [layer(spec, traits, w, i, read_mixer) for i in range(spec.n_layers)]
        self.norm = read_norm(w, traits.output_norm, spec.n_embd, traits.norm, spec.norm_eps)
        self.output = read_output(spec, traits, w)
        self.n_weight_bytes, self.arithmetic = 0, COMMON
        self.mapped: Sequence[FileSource] = ()
        self.adaptable: Mapping[str, Adaptable] = {}
        self.classifier: Classifier | None = None

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model, after the final norm: Rows [batch.outputs.n_rows, n_embd]."""
        x = self.embedding.rows(batch)
        tables = [angles(batch, frequencies, magnitude) for frequencies, magnitude in self.rotations]
        self.run(x, tables, states[:-1], batch)
        batch.poll()
        last = self.layers[-1]
        return self.norm(last.outputs(x, last.angles(tables), states[-1], batch))

    def run(self, x: Rows, tables: Sequence[Rows], states: Sequence[LayerSlabs], batch: Batch, first: int = 0) -> None:
        """Runs as many layers as there are states, from the ``first`` on, in place."""
        for layer, slabs in zip(self.layers[first:], states, strict=False):
            batch.poll()
            mark = batch.workspace.mark()
            layer.forward(x, layer.angles(tables), slabs, batch)
            batch.workspace.release(mark)

    def logits(self, hidden: Rows, batch: Batch) -> Rows:
        """Scores over the vocabulary: Rows [hidden.n, n_vocab]. batch: the one whose rows ``hidden`` has."""
        logits = linear(hidden, self.output, batch)
        if self.spec.scales.logits != 1.0:
            scale_(logits, self.spec.scales.logits)
        if self.spec.scales.logit_cap:
            softcap_(logits, self.spec.scales.logit_cap)
        return logits


def read_output(spec: ModelSpec, traits: Traits, w: Weights) -> Matrix:
    """The matrix of logits: the table of embeddings, in files without one."""
    biased = "output" in traits.biased
    tied = "output.weight" not in w and not biased
    return w.linear("token_embd" if tied else "output", spec.n_vocab, spec.n_embd, bias=biased)


class Embedding:
    """Rows of the table, scaled, normalised, or with learned positions added, as the architecture has it."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights) -> None:
        self.scale = spec.scales.embedding
        self.table = w.table("token_embd.weight", (spec.n_vocab, spec.n_embd))
        self.positions = None
        if traits.positions:
            self.positions = w.table("position_embd.weight", (spec.context_length, spec.n_embd))
        self.norm: Norm | None = None
        if traits.embedding_norm == "plain":
            self.norm = RmsNorm(Vector(np.ones(spec.n_embd, np.float32)), spec.norm_eps)
        elif traits.embedding_norm:
            self.norm = read_norm(w, "token_embd_norm", spec.n_embd, traits.norm, spec.norm_eps)

    def rows(self, batch: Batch) -> Rows:
        x = look_up(batch, self.table, batch.tokens)
        if self.scale != 1.0:
            scale_(x, self.scale)
        if self.positions is not None:
            add_(x, look_up(batch, self.positions, batch.positions))
        return x if self.norm is None else self.norm(x)


def look_up(batch: Batch, table: Table, ids: NDArray[np.int32]) -> Rows:
    """A row of the table for each row of the batch."""
    x = table.rows(batch.workspace, ids)
    if batch.adapters is not None:
        batch.adapters.add_rows(x, table, ids)
    return x


class Layer:
    """``x += mixer(norm(x)); x += feed_forward(norm(x))``; in parallel, both start from the same ``x``."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, read_mixer: ReadMixer) -> None:
        self.attn_norm, self.ffn_norm, self.parallel = read_norms(spec, traits, w, i)
        self.rotation = rotation_of(spec, traits, i)
        self.mixer = read_mixer(spec, traits, w, i, read_residual(spec, traits, w, f"blk.{i}.post_attention_norm"))
        self.ffn = self.read_ffn(spec, traits, w, i)

    def read_ffn(self, spec: ModelSpec, traits: Traits, w: Weights, i: int) -> FeedForward:
        return feed_forward(spec, traits, w, i)

    def angles(self, tables: Sequence[Rows]) -> Rows | None:
        """The layer's cosines and sines; None if it doesn't rotate."""
        return None if self.rotation is None else tables[self.rotation]

    def forward(self, x: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        h = self.attn_norm(x, self.mixer.codes)
        if self.parallel:
            g = self.ffn_input(x, h)
            self.mixer.add_to(x, h, cos_sin, slabs, batch)
            self.ffn.add_to(x, g, batch)
        else:
            self.mixer.add_to(x, h, cos_sin, slabs, batch)
            self.ffn.add_to(x, h if self.ffn_norm is None else self.ffn_norm(x, self.ffn.codes), batch)

    def outputs(self, x: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> Rows:
        """The last layer: all rows store their state, but only those of the output are computed further."""
        if batch.outputs is batch:
            self.forward(x, cos_sin, slabs, batch)
            return x
        h = self.attn_norm(x, self.mixer.codes)
        x = take_rows(x, batch.output_rows)
        g = self.ffn_input(x, take_rows(h, batch.output_rows)) if self.parallel else None
        self.mixer.add_outputs_to(x, h, cos_sin, slabs, batch)
        if x.n:
            self.ffn.add_to(x, self.ffn_input(x, h) if g is None else g, batch.outputs)
        return x

    def ffn_input(self, x: Rows, h: Rows) -> Rows:
        """The stream, normalised; or what went into the mixer, where both share one norm."""
        return h if self.ffn_norm is None else self.ffn_norm(x, self.ffn.codes)


def same(x: Rows, codes: bool = False) -> Rows:
    """No norm. ``codes`` has no effect: the product that needs the 8-bit twin makes it."""
    return x


def read_norms(spec: ModelSpec, traits: Traits, w: Weights, i: int) -> tuple[Norm, Norm | None, bool]:
    """The norms of what goes into the two branches, and whether both start from the same stream."""
    prefix, layer = f"blk.{i}.", spec.layers[i]
    attn, ffn = "attn_norm", traits.ffn_norm
    parallel = traits.parallel == "yes"
    if traits.parallel == "key":
        parallel = w.metadata.get_bool(f"{spec.arch}.use_parallel_residual")
    elif traits.parallel == "without_ffn_norm" and f"{prefix}ffn_norm.weight" not in w:
        parallel, ffn = True, None
    if not traits.pre_norms:
        return same, same, parallel
    first = traits.pre_norms == "after_first" and not i
    if traits.may_skip:  # a part that a layer lacks has no norm
        first, ffn = first or not layer.n_heads, ffn if layer.n_ff else None
    if ffn is None and f"{prefix}attn_norm_2.weight" in w:  # Falcon 40B: the second is attention's
        attn, ffn = "attn_norm_2", "attn_norm"

    def read(name: str) -> Norm:
        return read_norm(w, prefix + name, spec.n_embd, traits.norm, spec.norm_eps)

    return same if first else read(attn), None if ffn is None else read(ffn), parallel


def read_residual(spec: ModelSpec, traits: Traits, w: Weights, name: str) -> Residual:
    eps = spec.norm_eps if traits.post_epsilon is None else traits.post_epsilon
    norm = read_norm(w, name, spec.n_embd, traits.norm, eps) if traits.post_norms else None
    return Residual(norm, spec.scales.residual)


def feed_forward(spec: ModelSpec, traits: Traits, w: Weights, i: int) -> FeedForward:
    """The layer's feed-forward part: experts, or one network. Which layers have experts, Jamba's metadata don't say."""
    p, n_ff = f"blk.{i}.", spec.layers[i].n_ff
    if not n_ff:
        return NoFeedForward()
    residual = read_residual(spec, traits, w, p + "post_ffw_norm")
    experts = spec.experts
    check_router(spec, w, i)
    limit = experts.shared_limits[i] if experts is not None and experts.shared_limits else 0.0
    if experts is None or not experts.in_layer(i) or p + "ffn_down.weight" in w:
        if traits.gated:
            return Gated(w, p, spec.n_embd, n_ff, traits, residual, limit=limit)
        return Plain(w, p, spec.n_embd, n_ff, traits, residual)
    shared = read_shared(spec, traits, w, p, limit)
    if shared is not None and experts.shared_average:
        residual = Residual(residual.norm, residual.scale / 2)
    limit = experts.limits[i] if experts.limits else 0.0
    kind = LatentExperts if experts.n_latent else WeighedInput if experts.weighs_input else Experts
    return kind(spec.n_embd, experts, w, p, residual=residual, shared=shared, limit=limit)


def read_shared(spec: ModelSpec, traits: Traits, w: Weights, p: str, limit: float) -> FeedForward | None:
    """Feed-forward part that runs beside a layer's experts, for all tokens."""
    if spec.experts is None or not spec.experts.n_ff_shared:
        return None
    if traits.gated:
        return Gated(w, p, spec.n_embd, spec.experts.n_ff_shared, traits, Residual(), "_shexp", limit)
    return Plain(w, p, spec.n_embd, spec.experts.n_ff_shared, traits, Residual(), "_shexp")


def check_router(spec: ModelSpec, w: Weights, i: int) -> None:
    """The layer's tensors against metadata's word on experts: a wrong count would otherwise end as a missing matrix."""
    router, dense = f"blk.{i}.ffn_gate_inp.weight", f"blk.{i}.ffn_down.weight"
    if spec.experts is not None and spec.experts.in_layer(i):
        if router not in w and dense not in w:
            raise MissingTensorError(f"tensor {router} is missing, and so is {dense}: layer {i} has one of them")
    elif router in w and spec.experts is None:
        raise LoadError(f"{spec.arch}.expert_count is 0, but the file has a tensor {router}")
    elif router in w and dense not in w:
        raise LoadError(
            f"{spec.arch}.leading_dense_block_count and interleave_moe_layer_step leave layer {i} without experts, but "
            f"the file has a tensor {router}"
        )


def rotation_of(spec: ModelSpec, traits: Traits, i: int) -> int | None:
    """Index of the layer's rotation in `read_rotations`."""
    layer = spec.layers[i]
    if isinstance(traits.rotates, str):
        rotates = layer.window > 0 or not spec.window
        if traits.rotates == "windows_and_dense":
            rotates = rotates or (spec.experts is not None and i < spec.experts.n_dense_first)
    else:
        rotates = traits.rotates(i)
    if spec.rope is None or not (rotates and layer.rotates and layer.n_heads):
        return None
    return int(traits.window_base is not None and layer.window > 0)


def read_rotations(
    spec: ModelSpec, traits: Traits, w: Weights, context_size: int
) -> list[tuple[NDArray[np.float64], float]]:
    """Frequencies (radians per token) and magnitudes: those of metadata, and those of layers with a window."""
    if spec.rope is None:
        return []
    ropes = [(spec.rope.frequencies(rope_factors(spec, w, context_size), context_size), spec.rope.magnitude)]
    if traits.window_base is not None:
        plain = spec.rope.of_windows(w.metadata, spec.arch, traits.window_base or spec.rope.base)
        ropes.append((plain.frequencies(), plain.magnitude))
    elif spec.window:
        check_common_base(spec.rope.base, w.metadata, spec.arch)
    return ropes


def check_common_base(base: float, m: Metadata, arch: str) -> None:
    """Raises UnsupportedModelError for a base of layers with a window, where these have none of their own."""
    key = f"{arch}.rope.freq_base_swa"
    own = m.get_float(key, base)
    if own != base:
        raise UnsupportedModelError(f"{key} is {own}, but all layers of {arch} are computed with rope.freq_base {base}")


def rope_factors(spec: ModelSpec, w: Weights, context_size: int) -> NDArray[np.float32] | None:
    """Divisors of the rotary frequencies: Llama-3's, or LongRoPE's for the context in use."""
    assert spec.rope is not None
    n = max(spec.rope.n_rot, spec.rope.n_rot_windows) // 2
    chosen = None
    names = "rope_factors_long.weight", "rope_factors_short.weight"
    if spec.rope.scaling == "longrope" or any(name in w for name in names):
        long, short = (w.vector(name, n) for name in names)
        chosen = long if context_size > spec.rope.original_context else short
    elif "rope_freqs.weight" in w:
        chosen = w.vector("rope_freqs.weight", n)
    return None if chosen is None else chosen.numpy()[: spec.rope.n_rot // 2]
