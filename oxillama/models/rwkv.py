"""RWKV-7: layers that remember by a matrix per head and by the token before, without attention.

Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution", 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile, Metadata
from oxillama.gguf.source import FileSource
from oxillama.kernels.activations import relu2_, sigmoid_
from oxillama.kernels.batch import Batch
from oxillama.kernels.matmul import linear
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Rows, add_, add_scaled_, mul_, softcap_, take_rows
from oxillama.kernels.rwkv import Rwkv7, rwkv7
from oxillama.kernels.ssm import Convolution, columns, conv1d
from oxillama.layer_state import RecurrentShape, panels
from oxillama.models.adaptable import Adaptable
from oxillama.models.classifier import Classifier
from oxillama.models.decoder import Embedding
from oxillama.models.layers import LayerSlabs, Residual, read_norm
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import COMMON, Weights

MAX_STATE = 1 << 28  # values of one layer
HEAD_EPS = 64e-5  # of the norms of heads, in the author's code
# What the uses of a time mix are called in files, in the order of their shares of the token before.
USES = ("receptance", "decay", "key", "value", "rate", "gate")
RANKS = {"w": "decay_lora_rank", "a": "iclr_lora_rank", "v": "value_residual_mix_lora_rank", "g": "gate_lora_rank"}


class Rwkv:
    """``output(norm(layers(norm(embedding(tokens)))))``; later layers read the values of the first."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        self.spec = spec
        self.embedding = Embedding(spec, traits, w)
        self.layers = [RwkvLayer(spec, traits, w, i) for i in range(spec.n_layers)]
        self.norm = read_norm(w, traits.output_norm, spec.n_embd, traits.norm, spec.norm_eps)
        self.output = w.linear("output", spec.n_vocab, spec.n_embd)
        self.n_weight_bytes, self.arithmetic = 0, COMMON
        self.mapped: Sequence[FileSource] = ()
        self.adaptable: Mapping[str, Adaptable] = {}
        self.classifier: Classifier | None = None

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model, after the final norm: Rows [batch.outputs.n_rows, n_embd]."""
        x, first = self.embedding.rows(batch), None
        for layer, slabs in zip(self.layers, states, strict=True):
            batch.poll()
            mark = batch.workspace.mark()
            values = layer.mix_time(x, first, slabs, batch)
            if layer is self.layers[-1]:
                return self.norm(layer.channel_outputs(x, slabs, batch))
            layer.mix_channels(x, slabs, batch)
            if first is None:
                first = values  # for all layers: the workspace keeps it
            else:
                batch.workspace.release(mark)
        raise AssertionError("a model has layers")

    def logits(self, hidden: Rows, batch: Batch) -> Rows:
        """Scores over the vocabulary: Rows [hidden.n, n_vocab]. batch: the one whose rows ``hidden`` has."""
        return linear(hidden, self.output, batch)


class RwkvLayer:
    """``x += time_mix(norm(x)); x += channel_mix(norm(x))``."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int) -> None:
        self.time_norm, self.channel_norm = (
            read_norm(w, f"blk.{i}.{name}", spec.n_embd, traits.norm, spec.norm_eps)
            for name in ("attn_norm", "attn_norm_2")
        )
        self.time, self.channels = TimeMix(spec, w, i), ChannelMix(spec, w, i)

    def mix_time(self, x: Rows, first: Rows | None, slabs: LayerSlabs, batch: Batch) -> Rows:
        """Changes ``x`` in place. Returns the layer's values; ``first``: those of the first layer, None in it."""
        return self.time.add_to(x, self.time_norm(x), first, slabs, batch)

    def mix_channels(self, x: Rows, slabs: LayerSlabs, batch: Batch) -> None:
        self.channels.add_to(x, self.channels.shifted(self.channel_norm(x), slabs, batch), batch)

    def channel_outputs(self, x: Rows, slabs: LayerSlabs, batch: Batch) -> Rows:
        """The last layer: all rows leave their state, but only those of the output are computed further."""
        h = self.channels.shifted(self.channel_norm(x), slabs, batch)
        if batch.outputs is not batch:
            x, h = (take_rows(rows, batch.output_rows) for rows in (x, h))
        if x.n:
            self.channels.add_to(x, h, batch.outputs)
        return x


class TimeMix:
    """``x += out(heads(r, decays, k, v, rates) * gate)``, each of them a projection of a mix with the token before."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int) -> None:
        p, n, m = f"blk.{i}.time_mix_", spec.n_embd, w.metadata
        shares = w.values(f"{p}lerp_fused.weight", len(USES), 1, 1, n).reshape(len(USES), n)
        self.shifts = [shift(share) for share in shares]
        self.r, self.k, self.v, self.out = (
            w.linear(p + name, n, n) for name in ("receptance", "key", "value", "output")
        )
        self.decay = LowRank(w, p, "w", n, read_rank(m, "w"))
        self.rate = LowRank(w, p, "a", n, read_rank(m, "a"), bias="a0")
        self.gate = LowRank(w, p, "g", n, read_rank(m, "g"))
        self.share_of_first = LowRank(w, p, "v", n, read_rank(m, "v"), bias="v0") if i else None
        if not i:
            for name in ("v0", "v1", "v2"):
                w.leave_out(f"{p}{name}.weight")  # which files have all the same
        w0, k_k, k_a, r_k, weight = (w.values(f"{p}{name}.weight", n) for name in ("w0", "k_k", "k_a", "r_k", "ln"))
        bias = w.values(f"{p}ln.bias", n)
        self.heads = Rwkv7(w0, k_k, k_a, r_k, weight, bias, width=head_size(m), eps=HEAD_EPS)
        self.residual = Residual()

    def add_to(self, x: Rows, h: Rows, first: Rows | None, slabs: LayerSlabs, batch: Batch) -> Rows:
        """Returns the values of all rows, mixed with those of the first layer."""
        before, slab, _ = slabs
        for_r, for_w, for_k, for_v, for_a, for_g = (conv1d(h, 0, mix, before, batch) for mix in self.shifts)
        r, k, v = linear(for_r, self.r, batch), linear(for_k, self.k, batch), linear(for_v, self.v, batch)
        if first is not None and self.share_of_first is not None:
            share = self.share_of_first(for_v, batch)
            sigmoid_(share)
            difference = columns(first, 0, first.dim)
            add_scaled_(difference, v, -1.0)
            mul_(difference, share)
            add_(v, difference)
        decay = self.decay(for_w, batch, tanh_)
        y = rwkv7(r, decay, k, v, self.rate(for_a, batch), self.heads, slab, batch)
        mul_(y, self.gate(for_g, batch, sigmoid_))
        self.residual.add_product(x, y, self.out, batch)
        return v


class ChannelMix:
    """``x += value(relu(key(mix))^2)``, of a mix with the token before."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int) -> None:
        p, n, n_ff = f"blk.{i}.channel_mix_", spec.n_embd, spec.layers[i].n_ff
        self.shift = shift(w.values(f"{p}lerp_k.weight", n))
        self.key, self.value = w.linear(f"{p}key", n_ff, n), w.linear(f"{p}value", n, n_ff)
        self.residual = Residual()

    def shifted(self, h: Rows, slabs: LayerSlabs, batch: Batch) -> Rows:
        return conv1d(h, 0, self.shift, slabs[2], batch)

    def add_to(self, x: Rows, h: Rows, batch: Batch) -> None:
        hidden = linear(h, self.key, batch)
        relu2_(hidden)
        self.residual.add_product(x, hidden, self.value, batch)


class LowRank:
    """``b(bend(a(h))) + bias``: two matrices, between which there are few values."""

    def __init__(self, w: Weights, p: str, name: str, n: int, rank: int, bias: str = "") -> None:
        vector = w.vector(f"{p}{bias}.weight", n) if bias else None
        self.a: Matrix = w.linear(f"{p}{name}1", rank, n)
        self.b: Matrix = w.matrix(f"{p}{name}2.weight", n, rank, bias=vector)

    def __call__(self, h: Rows, batch: Batch, bend: Callable[[Rows], None] | None = None) -> Rows:
        y = linear(h, self.a, batch)
        if bend is not None:
            bend(y)
        return linear(y, self.b, batch)


def tanh_(x: Rows) -> None:
    softcap_(x, 1.0)


def shift(share: NDArray[np.float32]) -> Convolution:
    """Shift of each channel to that of the token before, by its share: a filter of two taps."""
    with np.errstate(all="ignore"):  # of what is no number, nothing is said
        return Convolution(np.stack([share, 1 - share], axis=1))


def head_size(m: Metadata) -> int:
    """Width of a head of the time mix. Raises LoadError if it doesn't divide the model's."""
    key, n = f"{m.arch}.wkv.head_size", m.get_int(f"{m.arch}.embedding_length")
    width = m.get_int(key, minimum=1, maximum=1 << 12)
    if n % width:
        raise LoadError(f"{key} is {width}, which does not divide embedding_length {n}")
    if n * panels(width) > MAX_STATE:
        raise LoadError(
            f"{key} {width} makes a state of {n * panels(width)} values in each layer; at most {MAX_STATE} can be"
        )
    return width


def read_rank(m: Metadata, use: str) -> int:
    return m.get_int(f"{m.arch}.attention.{RANKS[use]}", minimum=1, maximum=1 << 20)


def read_rwkv(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Hyper-parameters; a layer keeps the last token's input of both mixes, and between them the heads' states."""
    spec, width = read_spec(file, traits), head_size(file.metadata)
    if spec.n_heads or spec.n_kv_heads:
        key, n = f"{spec.arch}.attention.head_count", spec.n_heads
        raise LoadError(f"{key} is {n}, but no layer of {spec.arch} has attention")
    token, heads = RecurrentShape(spec.n_embd), RecurrentShape(spec.n_embd * panels(width))
    states = ((token, heads, token),) * spec.n_layers
    return replace(spec, states=states, mixer_values=18 * spec.n_embd)
