"""Feed-forward layers that several families share. Each adds its output to the residual stream, in place."""

from __future__ import annotations

from typing import Protocol

from oxillama.kernels.activations import swiglu_
from oxillama.kernels.experts import combine_, expert_matmul, route_softmax
from oxillama.kernels.gated import gated
from oxillama.kernels.matmul import linear, linear_add_
from oxillama.kernels.rows import Rows, add_, gate_sigmoid_
from oxillama.models.spec import ExpertSpec, ModelSpec
from oxillama.models.weights import Weights


class FeedForward(Protocol):
    """``codes``: integer matrices read its input ``h``, so that whoever makes that should make its 8-bit twin too."""

    codes: bool

    def add_to(self, x: Rows, h: Rows) -> None:
        """Adds its output for the normalised input ``h`` to the residual stream ``x``, in place."""


def feed_forward(spec: ModelSpec, w: Weights, prefix: str) -> FeedForward:
    """The layer's feed-forward part: one SwiGLU, or experts."""
    if spec.experts is not None and prefix + "ffn_gate_inp.weight" in w:
        return Experts(spec.n_embd, spec.experts, w, prefix)
    return SwiGlu(spec.n_embd, spec.n_ff, w, prefix)


class SwiGlu:
    """``x += down(silu(gate(h)) * up(h))``."""

    def __init__(self, n_embd: int, n_ff: int, w: Weights, prefix: str, suffix: str = "") -> None:
        self.gate = w.linear(f"{prefix}ffn_gate{suffix}", n_ff, n_embd)
        self.up = w.linear(f"{prefix}ffn_up{suffix}", n_ff, n_embd)
        self.down = w.linear(f"{prefix}ffn_down{suffix}", n_embd, n_ff)
        self.codes = self.gate.integer

    def hidden(self, h: Rows) -> Rows:
        return gated(h, self.gate, self.up, "silu", self.down.integer)

    def add_to(self, x: Rows, h: Rows) -> None:
        linear_add_(x, self.hidden(h), self.down)


class Experts:
    """Each row's share of the experts that its router chose, and of the shared expert where there is one."""

    def __init__(self, n_embd: int, spec: ExpertSpec, w: Weights, prefix: str) -> None:
        n = spec.n_experts
        self.n_used, self.normalise = spec.n_used, spec.normalise
        self.router = w.matrix(prefix + "ffn_gate_inp.weight", n, n_embd)
        self.gate = w.matrix(prefix + "ffn_gate_exps.weight", n, spec.n_ff, n_embd)
        self.up = w.matrix(prefix + "ffn_up_exps.weight", n, spec.n_ff, n_embd)
        self.down = w.matrix(prefix + "ffn_down_exps.weight", n, n_embd, spec.n_ff)
        self.codes = self.gate.integer
        self.shared = SwiGlu(n_embd, spec.n_ff_shared, w, prefix, "_shexp") if spec.n_ff_shared else None
        if self.shared is not None:
            self.shared_gate = w.matrix(prefix + "ffn_gate_inp_shexp.weight", 1, n_embd)

    def add_to(self, x: Rows, h: Rows) -> None:
        routing = route_softmax(linear(h, self.router), self.n_used, self.normalise)
        gate, up = expert_matmul(h, routing, [self.gate, self.up])
        (down,) = expert_matmul(swiglu_(gate, up), routing, [self.down], by_pair=True)
        if self.shared is not None:
            hidden = self.shared.hidden(h)
            shared = linear(hidden, self.shared.down)
            gate_sigmoid_(shared, linear(h, self.shared_gate))
            add_(x, shared)
        combine_(x, down, routing)
