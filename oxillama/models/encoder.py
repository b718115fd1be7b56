"""Encoders: every token sees all others, and what comes out is a vector for each token, no scores of a next one.

Devlin et al., "BERT", 2018. Unlike in a decoder, the sum of stream and branch is normalised, not what goes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError, GenerateError, UnsupportedModelError
from oxillama.gguf import GGUFFile
from oxillama.gguf.source import FileSource
from oxillama.kernels.batch import Batch
from oxillama.kernels.norms import layer_norm_
from oxillama.kernels.rope import angles
from oxillama.kernels.rows import Rows, Vector, add_, add_bias_, take_rows
from oxillama.layer_state import KvShape
from oxillama.models.adaptable import Adaptable
from oxillama.models.attention import SelfAttention
from oxillama.models.classifier import Classifier, has_classifier
from oxillama.models.decoder import Embedding, feed_forward, look_up, read_rotations
from oxillama.models.layers import LayerSlabs, Residual
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.table import Table
from oxillama.models.traits import Traits
from oxillama.models.weights import COMMON, Weights

MAX_SEGMENTS = 1 << 16


class Encoder:
    """``layers(norm(words + segment + positions))``. Keys and values are forgotten: all layers use the first's slab."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        self.spec = spec
        self.embedding = Embedding(spec, traits, w)
        self.segment = read_segment(spec, w)
        self.pairs = PairTypes.read(spec, w) if has_classifier(spec, w) else None
        self.norm = SumNorm(spec, w, "token_embd_norm")
        self.rotations = read_rotations(spec, traits, w, context_size)
        self.layers = [EncoderLayer(spec, traits, w, i) for i in range(spec.n_layers)]
        self.n_weight_bytes, self.arithmetic = 0, COMMON
        self.mapped: Sequence[FileSource] = ()
        self.adaptable: Mapping[str, Adaptable] = {}
        self.classifier: Classifier | None = None

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model: Rows [batch.outputs.n_rows, n_embd].

        Raises ConfigError for a part of a sequence: its tokens would not see the others.
        """
        check_whole(self.spec, batch)
        x = self.embedding.rows(batch)
        if self.pairs is not None:
            add_(x, look_up(batch, self.pairs.table, self.pairs.of(batch)))
        elif self.segment is not None:
            add_bias_(x, self.segment)
        self.norm(x)
        tables = [angles(batch, frequencies, magnitude) for frequencies, magnitude in self.rotations]
        for layer in self.layers:
            batch.poll()
            mark = batch.workspace.mark()
            layer.forward(x, tables[0] if tables else None, states[0], batch)
            batch.workspace.release(mark)
        return x if batch.outputs is batch else take_rows(x, batch.output_rows)

    def logits(self, hidden: Rows, batch: Batch) -> Rows:
        """Raises GenerateError: there are none."""
        raise no_logits(self.spec)


class EncoderLayer:
    """``x = norm(x + attention(x)); x = norm(x + feed_forward(x))``, in place."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int) -> None:
        self.attention = SelfAttention(spec, traits, w, i, Residual())
        self.attention_norm = SumNorm(spec, w, f"blk.{i}.attn_output_norm")
        self.ffn = feed_forward(spec, traits, w, i)
        self.ffn_norm = SumNorm(spec, w, f"blk.{i}.layer_output_norm")

    def forward(self, x: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        self.attention.add_to(x, x, cos_sin, slabs, batch)
        self.attention_norm(x)
        self.ffn.add_to(x, x, batch)
        self.ffn_norm(x)


class SumNorm:
    """Layer norm with weights and biases, in place."""

    def __init__(self, spec: ModelSpec, w: Weights, name: str) -> None:
        self.weight, self.bias = (w.vector(f"{name}.{part}", spec.n_embd) for part in ("weight", "bias"))
        self.eps = spec.norm_eps

    def __call__(self, x: Rows) -> None:
        layer_norm_(x, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class PairTypes:
    """Token types of pairs: another row is added to the tokens of the second text than to those of the first.

    Only models with a classifier were trained on pairs. ``separator``: what ends the first text.
    """

    table: Table
    separator: int

    @classmethod
    def read(cls, spec: ModelSpec, w: Weights) -> PairTypes | None:
        """None where all texts are of one kind, as in RoBERTa."""
        name = "token_types.weight"
        separator = w.metadata.get_int("tokenizer.ggml.seperator_token_id", -1)
        if name not in w or w.n_values(name) != 2 * spec.n_embd or separator < 0:
            return None
        return cls(w.table(name, (2, spec.n_embd)), separator)

    def of(self, batch: Batch) -> NDArray[np.int32]:
        """Kind of each row: 0 up to its text's first separator, and 1 after it."""
        ends = batch.tokens == self.separator
        before = np.cumsum(ends) - ends
        starts = batch.positions == 0
        types: NDArray[np.int32] = np.minimum(before - before[starts][np.cumsum(starts) - 1], 1).astype(np.int32)
        return types


def check_whole(spec: ModelSpec, batch: Batch) -> None:
    """Raises ConfigError for a part of a sequence: its tokens would not see the others."""
    if np.count_nonzero(batch.positions == 0) != batch.n_spans:
        raise ConfigError(f"architecture {spec.arch} takes sequences whole, from position 0 on")


def no_logits(spec: ModelSpec) -> GenerateError:
    """The error of an encoder for requests of a next token."""
    return GenerateError(f"architecture {spec.arch} has no scores over the vocabulary; it makes embeddings")


def read_segment(spec: ModelSpec, w: Weights) -> Vector | None:
    """Row that is added to every token for being of the first of two texts; the second's kind is not asked for."""
    name = "token_types.weight"
    known = w.n_values(name) // spec.n_embd if name in w else 2  # where metadata don't say, as without a vocabulary
    n = w.metadata.get_int("tokenizer.ggml.token_type_count", known, minimum=0, maximum=MAX_SEGMENTS)
    if not n:
        return None
    return Vector(w.values(name, n, spec.n_embd)[0])


def read_encoder_spec(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Hyper-parameters, with room for the keys and values of one layer at a time."""
    spec = read_spec(file, traits)
    if len({layer.n_kv_heads for layer in spec.layers}) > 1:
        raise UnsupportedModelError(f"{spec.arch}.attention.head_count_kv differs between layers")
    shape = KvShape(spec.n_kv_heads, spec.head_dim, spec.v_head_dim)
    return replace(spec, states=((shape,), *((),) * (spec.n_layers - 1)))
