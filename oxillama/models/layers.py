"""Parts that layers are made of: norms, how a branch joins the residual stream, and feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from oxillama.kernels.activations import gelu_, gelu_erf_, relu2_, relu_, silu_
from oxillama.kernels.batch import Batch
from oxillama.kernels.gated import gated
from oxillama.kernels.matmul import linear, linear_add_
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.norms import layer_norm, rms_norm
from oxillama.kernels.rows import Rows, Vector, add_, add_scaled_
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

# Of one layer, in the order of its shapes in `ModelSpec.states`: KvSlab or RecurrentSlab, which the kernels check. What
# layers of a pass hand on may stand behind them (`indexed.py`).
LayerSlabs = tuple[Any, ...]

ACTIVATIONS = {"silu": silu_, "gelu": gelu_, "gelu_erf": gelu_erf_, "relu": relu_, "relu2": relu2_}


class Norm(Protocol):
    """``codes``: an integer matrix will read the result, which therefore gets its 8-bit twin in the same pass."""

    def __call__(self, x: Rows, codes: bool = False) -> Rows: ...


class RmsNorm:
    def __init__(self, weight: Vector, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: Rows, codes: bool = False) -> Rows:
        return rms_norm(x, self.weight, self.eps, codes)


class LayerNorm:
    def __init__(self, weight: Vector | None, bias: Vector | None, eps: float) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps

    def __call__(self, x: Rows, codes: bool = False) -> Rows:
        return layer_norm(x, self.weight, self.bias, self.eps, codes)


def read_norm(w: Weights, name: str, n: int, kind: str, eps: float) -> Norm:
    """The norm whose tensors are ``name.weight`` and ``name.bias``, as far as its kind (`Traits.norm`) has them."""
    if kind == "rms":
        plain = name in w and f"{name}.weight" not in w  # Falcon-H1's ffn_norm
        return RmsNorm(w.vector(name if plain else f"{name}.weight", n), eps)
    if kind == "rms_plain":
        return RmsNorm(Vector(np.ones(n, np.float32)), eps)
    weight = None if kind == "layer_plain" else w.vector(f"{name}.weight", n)
    bias = w.vector(f"{name}.bias", n) if kind == "layer" else None
    return LayerNorm(weight, bias, eps)


class Residual:
    """Residual connection by which a branch's output joins the stream ``x``: as it is, or normalised, or scaled."""

    def __init__(self, norm: Norm | None = None, scale: float = 1.0) -> None:
        self.norm, self.scale = norm, scale
        self.plain = norm is None and scale == 1.0
        # x += h @ w.T (+ bias), in place, in rows of a batch
        self.add_product: Callable[[Rows, Rows, Matrix, Batch], None] = linear_add_ if self.plain else self._add_changed

    def _add_changed(self, x: Rows, h: Rows, w: Matrix, batch: Batch) -> None:
        self.add(x, linear(h, w, batch))

    def add(self, x: Rows, y: Rows) -> None:
        """``x += y``, in place."""
        if self.norm is not None:
            y = self.norm(y)
        if self.scale == 1.0:
            add_(x, y)
        else:
            add_scaled_(x, y, self.scale)


class Mixer(Protocol):
    """Part of a layer that lets tokens see each other. ``codes``: integer matrices read its input ``h``."""

    codes: bool

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """Adds its output for the normalised input ``h`` to the residual stream ``x``, in place."""

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """The last layer: all rows of ``h`` store their state, but ``x`` has only ``batch.output_rows``."""


class FeedForward(Protocol):
    """``codes``: integer matrices read its input ``h``, so that the producer of ``h`` makes its 8-bit twin too."""

    codes: bool

    def add_to(self, x: Rows, h: Rows, batch: Batch) -> None:
        """Adds its output for the normalised input ``h`` to the residual stream ``x``, in place: rows of ``batch``."""


class Gated:
    """``x += down(activation(gate(h)) * up(h))``: Shazeer, "GLU Variants Improve Transformer", 2020."""

    def __init__(self, w: Weights, prefix: str, n_embd: int, n_ff: int, traits: Traits, residual: Residual,
                 suffix: str = "", limit: float = 0.0) -> None:  # fmt: skip
        gate, up = f"{prefix}ffn_gate{suffix}", f"{prefix}ffn_up{suffix}"
        biased = "ffn" in traits.biased
        # Without a gate of its own, ``up`` holds it too, unless it is too short for that: then the gate is missing.
        if f"{gate}.weight" in w or (f"{up}.weight" in w and w.n_values(f"{up}.weight") == n_ff * n_embd):
            self.gate, self.up = (w.linear(name, n_ff, n_embd, bias=biased) for name in (gate, up))
        else:
            self.gate, self.up = w.linears(up, (n_ff, n_ff), n_embd, bias=biased)
        self.down = w.linear(f"{prefix}ffn_down{suffix}", n_embd, n_ff, bias=biased)
        self.activation, self.codes, self.residual = traits.activation, self.gate.integer, residual
        self.limit = limit  # of what both matrices give; 0: none

    def hidden(self, h: Rows, batch: Batch) -> Rows:
        return gated(h, self.gate, self.up, self.activation, self.down.integer, self.limit, batch)

    def add_to(self, x: Rows, h: Rows, batch: Batch) -> None:
        self.residual.add_product(x, self.hidden(h, batch), self.down, batch)


class Plain:
    """``x += down(activation(up(h)))``."""

    def __init__(self, w: Weights, prefix: str, n_embd: int, n_ff: int, traits: Traits, residual: Residual,
                 suffix: str = "") -> None:  # fmt: skip
        biased = "ffn" in traits.biased
        self.up = w.linear(f"{prefix}ffn_up{suffix}", n_ff, n_embd, bias=biased)
        self.down = w.linear(f"{prefix}ffn_down{suffix}", n_embd, n_ff, bias=biased)
        self.activate, self.codes, self.residual = ACTIVATIONS[traits.activation], self.up.integer, residual

    def add_to(self, x: Rows, h: Rows, batch: Batch) -> None:
        hidden = linear(h, self.up, batch)
        self.activate(hidden)
        self.residual.add_product(x, hidden, self.down, batch)


class NoFeedForward:
    """Feed-forward part of layers that are a mixer alone: none."""

    codes = False

    def add_to(self, x: Rows, h: Rows, batch: Batch) -> None:
        pass
