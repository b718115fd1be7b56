"""Kimi Delta Attention: linear attention by the delta rule, whose state forgets each channel of keys at its own pace.

Moonshot AI, "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025; Ant Group, "Ling 3.0", 2026, whose
decays have a bound. Files hold -exp(A_log) as ``ssm_a``, and exp(A_log) where there is a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.kernels.batch import Batch
from oxillama.kernels.dplr import ChannelDelta, channel_delta
from oxillama.kernels.matmul import linear, matmul
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Rows, take_rows
from oxillama.kernels.ssm import Convolution, conv1d
from oxillama.layer_state import LayerShape, RecurrentShape, panels
from oxillama.models.layers import LayerSlabs, Residual
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

MAX_STATE = 1 << 28  # values of one layer
MAX_BOUND = 87.0  # beyond which decays are no normal numbers of 32 bits
SAFE_GATE = "kda.safe_gate"  # a key of architectures whose decays have a bound


@dataclass(frozen=True)
class KdaSpec:
    """``n_heads`` of queries, keys and values, all ``head_dim`` wide, each kind behind a convolution of ``n_taps``.

    ``bound``: of the logarithms of decays, below 0; 0: none.
    """

    n_taps: int
    n_heads: int
    head_dim: int
    bound: float = 0.0

    @property
    def n_inner(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def shapes(self) -> LayerShape:
        """Shapes of what a layer keeps of a sequence: of three convolutions, and of the rule."""
        conv = RecurrentShape((self.n_taps - 1) * self.n_inner)
        return (conv, conv, conv, RecurrentShape(self.n_inner * panels(self.head_dim)))


def read_kda(m: Metadata, *, bounded: bool) -> KdaSpec:
    """Reads ``<arch>.kda.head_dim`` and others; LoadError names the keys and the values that can't be."""
    arch = m.arch
    n_taps = m.get_int(f"{arch}.ssm.conv_kernel", minimum=2, maximum=256)
    n_heads = m.get_int(f"{arch}.attention.head_count", minimum=1, maximum=1 << 16)
    head_dim = m.get_int(f"{arch}.kda.head_dim", minimum=1, maximum=1 << 12)
    spec = KdaSpec(n_taps, n_heads, head_dim, read_bound(m) if bounded else 0.0)
    n_values = sum(shape.n_values for shape in spec.shapes if isinstance(shape, RecurrentShape))
    if n_values > MAX_STATE:
        raise LoadError(
            f"{arch}.kda.head_dim {head_dim}, {arch}.attention.head_count {n_heads} and {arch}.ssm.conv_kernel "
            f"{n_taps} make a state of {n_values} values in each layer; at most {MAX_STATE} can be"
        )
    return spec


def is_bounded(traits: Traits) -> bool:
    return SAFE_GATE in traits.keys


def read_bound(m: Metadata) -> float:
    """The least logarithm of a decay. Models without one are not computed: nothing is known of their ``ssm_a``."""
    if not m.get_bool(f"{m.arch}.{SAFE_GATE}", True):
        raise UnsupportedModelError(
            f"{m.arch}.{SAFE_GATE} is False: decays without a bound are not computed with {m.arch}"
        )
    key = f"{m.arch}.kda.gate_lower_bound"
    bound = m.get_float(key, minimum=-MAX_BOUND, maximum=0.0)
    if bound == 0:
        raise LoadError(f"{key} is 0; the bound of a decay's logarithm is below 0")
    return bound


class ChannelDeltaMixer:
    """``out(norm(rule(silu(conv(q)), silu(conv(k)), silu(conv(v)), steps, beta)) * sigmoid(gate))``.

    All six are projections of the input; those of steps and gates go through the width of one head, but where decays
    have a bound.
    """

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        p, sizes, n = f"blk.{i}.", read_kda(w.metadata, bounded=is_bounded(traits)), spec.n_embd
        width, inner = sizes.head_dim, sizes.n_inner
        self.q, self.k, self.v = (w.linear(f"{p}attn_{part}", inner, n) for part in "qkv")
        self.convs = [
            Convolution(w.values(f"{p}ssm_conv1d_{part}.weight", inner, 1, sizes.n_taps)[:, 0], silu=True)
            for part in "qkv"
        ]
        self.widen: list[Matrix] = []
        if not sizes.bound:
            self.widen = [w.linear(f"{p}ssm_{part}_b", inner, width) for part in "fg"]
        self.steps, self.gate = (w.linear(f"{p}ssm_{part}_a", width if self.widen else inner, n) for part in "fg")
        self.beta = w.linear(f"{p}ssm_beta", sizes.n_heads, n)
        self.rule = ChannelDelta(
            w.values(f"{p}ssm_a", sizes.n_heads, 1).reshape(-1),
            w.values(f"{p}ssm_dt.bias", inner),
            w.values(f"{p}ssm_norm.weight", width),
            eps=spec.norm_eps,
            bound=sizes.bound,
        )
        self.out = w.linear(f"{p}attn_output", n, inner)
        self.codes, self.residual = self.q.integer, residual

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        self.residual.add_product(x, self.mix(h, slabs, batch), self.out, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """The last layer: all rows leave their state, but ``x`` has only the rows of the output."""
        y = self.mix(h, slabs, batch)
        if x.n:
            self.residual.add_product(x, take_rows(y, batch.output_rows), self.out, batch.outputs)

    def mix(self, h: Rows, slabs: LayerSlabs, batch: Batch) -> Rows:
        """Input of the last projection, of all rows."""
        *conv_slabs, slab = slabs
        *qkv, steps, gate, beta = matmul(h, self.q, self.k, self.v, self.steps, self.gate, self.beta, batch=batch)
        q, k, v = (conv1d(x, 0, conv, s, batch) for x, conv, s in zip(qkv, self.convs, conv_slabs, strict=True))
        if self.widen:
            steps, gate = (linear(x, wide, batch) for x, wide in zip((steps, gate), self.widen, strict=True))
        return channel_delta(q, k, v, gate, steps, beta, self.rule, slab, batch)
