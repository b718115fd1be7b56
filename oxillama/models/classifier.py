"""The head of rerankers and classifiers: from one token's hidden state to a score for each label.

As llama.cpp's converter writes them: ``cls`` is the dense layer of RoBERTa's head, ``cls.output`` the projection to the
labels; a file may have either alone. Of rerankers that answer "yes" or "no", ``cls.output`` are the two tokens' rows of
the output matrix, and the scores their probabilities (Qwen, "Qwen3 Embedding", 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import LoadError
from oxillama.kernels import elementary
from oxillama.models.linear import Deltas, Linear, no_deltas
from oxillama.models.spec import ModelSpec
from oxillama.models.weights import Weights

__all__ = ["Classifier", "has_classifier", "read_classifier"]

# Architectures whose heads are known to be computed like this; the tensors of others' are refused as of no use.
ENCODERS, ANSWERING = ("bert", "nomic-bert"), ("qwen3", "qwen3vl")
MAX_LABELS = 1 << 16


@dataclass(frozen=True)
class Classifier:
    """``output(tanh(dense(hidden)))`` of a text's first token in encoders, of its last in decoders, as probabilities.

    labels: names of the scores; empty if the file has none.
    """

    dense: Linear | None
    output: Linear | None
    labels: tuple[str, ...]
    of_first: bool

    def scores(self, hidden: NDArray[np.float32], deltas: Deltas = no_deltas) -> NDArray[np.float32]:
        """Scores of a hidden state, float32 [n_embd]: float32 [n_labels]. deltas: what adapters add to the layers."""
        x = hidden.astype(np.float64)
        if self.dense is not None:
            x = elementary.tanh(self.dense(x, deltas))
        if self.output is not None:
            x = self.output(x, deltas)
        if not self.of_first and len(x) > 1:
            x = elementary.exp(x - x.max())
            x /= x.sum()
        return x.astype(np.float32)


def has_classifier(spec: ModelSpec, w: Weights) -> bool:
    """Whether the file has a head that this architecture is computed with."""
    return spec.arch in ENCODERS + ANSWERING and ("cls.weight" in w or "cls.output.weight" in w)


def read_classifier(spec: ModelSpec, w: Weights) -> Classifier | None:
    """The head of a file, None without. Raises LoadError for shapes and labels that don't fit each other."""
    if not has_classifier(spec, w):
        return None
    dense = read_linear(w, "cls", spec.n_embd)
    output = read_linear(w, "cls.output", spec.n_embd if dense is None else len(dense.weight))
    last = output or dense
    assert last is not None
    labels = read_labels(spec, w, len(last.weight))
    return Classifier(dense, output, labels, of_first=spec.arch in ENCODERS)


def read_linear(w: Weights, name: str, n_in: int) -> Linear | None:
    """Reads a layer with as many rows as the file has: no key of metadata says how many there are."""
    if f"{name}.weight" not in w:
        return None
    n_out, left = divmod(w.n_values(f"{name}.weight"), n_in)
    if left or not 1 <= n_out <= MAX_LABELS:
        raise LoadError(f"tensor {name}.weight has {w.n_values(f'{name}.weight')} values; rows of {n_in} are needed")
    weight = w.values(f"{name}.weight", n_out, n_in)
    bias = w.values(f"{name}.bias", n_out) if f"{name}.bias" in w else None
    made = Linear(weight, bias)
    w.adapts(f"{name}.weight", (n_out, n_in), made)
    return made


def read_labels(spec: ModelSpec, w: Weights, n: int) -> tuple[str, ...]:
    key = f"{spec.arch}.classifier.output_labels"
    if key not in w.metadata:
        return ()
    labels = tuple(w.metadata.get_array(key, str))
    if len(labels) != n:
        raise LoadError(f"{key} names {len(labels)} labels, but the classifier has {n} outputs")
    return labels
