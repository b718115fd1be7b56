"""Feed-forward layers that several families share. Each adds its output to the residual stream, in place."""

from __future__ import annotations

from typing import Protocol

from oxillama.kernels.gated import swiglu
from oxillama.kernels.matmul import linear_add_
from oxillama.kernels.rows import Rows
from oxillama.models.experts import Experts
from oxillama.models.spec import ModelSpec
from oxillama.models.weights import Weights


class FeedForward(Protocol):
    """``codes``: integer matrices read its input ``h``, so that whoever makes that should make its 8-bit twin too."""

    codes: bool

    def add_to(self, x: Rows, h: Rows) -> None:
        """Adds its output for the normalised input ``h`` to the residual stream ``x``, in place."""


def feed_forward(spec: ModelSpec, w: Weights, prefix: str) -> FeedForward:
    """The layer's feed-forward part: one SwiGLU, or experts."""
    if spec.experts is not None and prefix + "ffn_gate_inp.weight" in w:
        width = spec.experts.n_ff_shared
        shared = SwiGlu(spec.n_embd, width, w, prefix, "_shexp") if width else None
        return Experts(spec.n_embd, spec.experts, w, prefix, shared=shared)
    return SwiGlu(spec.n_embd, spec.n_ff, w, prefix)


class SwiGlu:
    """``x += down(silu(gate(h)) * up(h))``."""

    def __init__(self, n_embd: int, n_ff: int, w: Weights, prefix: str, suffix: str = "") -> None:
        self.gate = w.linear(f"{prefix}ffn_gate{suffix}", n_ff, n_embd)
        self.up = w.linear(f"{prefix}ffn_up{suffix}", n_ff, n_embd)
        self.down = w.linear(f"{prefix}ffn_down{suffix}", n_embd, n_ff)
        self.codes = self.gate.integer

    def hidden(self, h: Rows) -> Rows:
        return swiglu(h, self.gate, self.up, self.down.integer)

    def add_to(self, x: Rows, h: Rows) -> None:
        linear_add_(x, self.hidden(h), self.down)
