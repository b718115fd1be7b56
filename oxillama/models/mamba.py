"""Mixers that keep a state of fixed size instead of keys and values: Mamba, Mamba-2, short convolutions.

Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023; Dao and Gu, "Transformers are
SSMs", 2024; Liquid AI, LFM2, 2025. Files hold -exp(A_log) as ``ssm_a``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.kernels.batch import Batch
from oxillama.kernels.matmul import linear
from oxillama.kernels.norms import rms_norm_groups
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Rows, Vector, take_rows
from oxillama.kernels.ssm import (
    Convolution,
    Scan1,
    Scan2,
    columns,
    conv1d,
    gated_conv1d,
    rms_norm_columns_,
    scan1,
    scan2,
)
from oxillama.layer_state import RecurrentShape, panels
from oxillama.models.layers import LayerSlabs, Residual
from oxillama.models.spec import ModelSpec
from oxillama.models.weights import Weights

MAX_STATE = 1 << 28  # values of one layer
NORM_IS_OPTIONAL = ("falcon-h1",)
# Of Falcon Mamba's norms within a layer (``mixer_rms_eps`` of its configuration); files have that of the others only.
FALCON_EPS = 1e-6


@dataclass(frozen=True)
class SsmSpec:
    """Sizes of a Mamba layer: ``n_inner`` channels with ``n_state`` values each, after a convolution of ``n_taps``.

    Mamba-2's channels belong to ``n_heads``, which share ``n_groups`` of b and c; Mamba's time steps come from a
    projection of ``rank``, and with ``norms`` are normalised before it, as are b and c.
    """

    n_taps: int
    n_inner: int
    n_state: int
    n_heads: int = 0
    n_groups: int = 1
    rank: int = 0
    norms: bool = False

    @property
    def n_convolved(self) -> int:
        """Channels of the convolution: Mamba-2's makes b and c too."""
        return self.n_inner + (2 * self.n_groups * self.n_state if self.n_heads else 0)

    @property
    def scan_at(self) -> int:
        """Offset of the scan's state in a slot, behind the convolution's."""
        return panels((self.n_taps - 1) * self.n_convolved)

    @property
    def shape(self) -> RecurrentShape:
        """Shape of the state that a layer keeps of a sequence."""
        heads = self.n_heads or 1
        return RecurrentShape(self.scan_at + heads * panels(self.n_inner // heads) * self.n_state)


def read_ssm(m: Metadata, version: int) -> SsmSpec:
    """Reads the keys ``<arch>.ssm.*``, of Mamba 1 or 2; LoadError names keys with impossible values."""
    key = f"{m.arch}.ssm."
    n_taps = m.get_int(key + "conv_kernel", minimum=1, maximum=256)
    n_inner = m.get_int(key + "inner_size", minimum=1, maximum=1 << 20)
    n_state = m.get_int(key + "state_size", minimum=1, maximum=1 << 16)
    rank = m.get_int(key + "time_step_rank", minimum=1, maximum=1 << 20)
    norms = m.get_bool(key + "dt_b_c_rms", False)
    spec = SsmSpec(n_taps, n_inner, n_state, rank=rank, norms=norms)
    if version == 2:
        if norms:
            raise UnsupportedModelError(f"{key}dt_b_c_rms is True, which architecture {m.arch} is not computed with")
        groups = m.get_int(key + "group_count", minimum=1, maximum=1 << 16)
        if n_inner % rank:
            raise LoadError(f"{key}inner_size is {n_inner}, which {key}time_step_rank {rank} does not divide")
        if rank % groups:
            raise LoadError(f"{key}time_step_rank is {rank}, which {key}group_count {groups} does not divide")
        spec = SsmSpec(n_taps, n_inner, n_state, n_heads=rank, n_groups=groups)
    if spec.shape.n_values > MAX_STATE:
        raise LoadError(
            f"{key}inner_size {n_inner}, {key}state_size {n_state} and {key}conv_kernel {n_taps} make a state of "
            f"{spec.shape.n_values} values in each layer; at most {MAX_STATE} can be"
        )
    return spec


class Recurrent(ABC):
    """``x += out(mix(h))``; mixers differ in ``mix``. All rows leave their state, whichever go on."""

    codes: bool

    def __init__(self, w: Weights, name: str, n_in: int, spec: ModelSpec, residual: Residual) -> None:
        self.out = w.linear(name, spec.n_embd, n_in)
        self.residual = residual

    @abstractmethod
    def mix(self, h: Rows, slab: RecurrentSlab, batch: Batch) -> Rows:
        """Input of the last projection, of all rows."""

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        (slab,) = slabs
        self.residual.add_product(x, self.mix(h, slab, batch), self.out, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        (slab,) = slabs
        y = self.mix(h, slab, batch)
        if x.n:
            self.residual.add_product(x, take_rows(y, batch.output_rows), self.out, batch.outputs)


class Mamba(Recurrent):
    """Channels with a time step each: ``scan(silu(conv(u))) * silu(z)``, where u and z are projections of the input."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int, residual: Residual) -> None:
        p, ssm = f"blk.{i}.ssm_", read_ssm(w.metadata, 1)
        super().__init__(w, p + "out", ssm.n_inner, spec, residual)
        self.ssm, self.eps = ssm, FALCON_EPS if ssm.norms else spec.norm_eps
        self.project = w.linear(p + "in", 2 * ssm.n_inner, spec.n_embd)
        self.conv = read_convolution(w, p + "conv1d", ssm.n_inner, ssm.n_taps, silu=True)
        self.select = w.linear(p + "x", ssm.rank + 2 * ssm.n_state, ssm.n_inner)
        self.norms = self.read_norms(w, p)
        self.steps = w.linear(p + "dt", ssm.n_inner, ssm.rank, bias=True)
        self.scan = Scan1(w.values(p + "a", ssm.n_inner, ssm.n_state), w.values(p + "d", ssm.n_inner))
        self.codes = self.project.integer

    def read_norms(self, w: Weights, p: str) -> list[tuple[int, Vector]]:
        """First columns and weights of the norms of time steps, b and c: Jamba's, or ones for Falcon Mamba."""
        n, rank = self.ssm.n_state, self.ssm.rank
        parts = (("dt", 0, rank), ("b", rank, n), ("c", rank + n, n))
        if self.ssm.norms:
            return [(first, Vector(np.ones(size, np.float32))) for _, first, size in parts]
        if not any(f"{p}{part}_norm.weight" in w for part, _, _ in parts):
            return []
        return [(first, w.vector(f"{p}{part}_norm.weight", size)) for part, first, size in parts]

    def mix(self, h: Rows, slab: RecurrentSlab, batch: Batch) -> Rows:
        projected = linear(h, self.project, batch)
        u = conv1d(projected, 0, self.conv, slab, batch)
        selected = linear(u, self.select, batch)
        for first, weight in self.norms:
            rms_norm_columns_(selected, first, weight, self.eps)
        steps = linear(columns(selected, 0, self.ssm.rank), self.steps, batch)
        return scan1(u, steps, selected, projected, self.scan, self.ssm.scan_at, slab, batch)


class Mamba2(Recurrent):
    """Heads with a time step each: ``norm(scan(silu(conv(u, b, c))) * silu(z))``; the norm may be missing."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int, residual: Residual) -> None:
        p, ssm = f"blk.{i}.ssm_", read_ssm(w.metadata, 2)
        super().__init__(w, p + "out", ssm.n_inner, spec, residual)
        self.ssm, self.eps = ssm, spec.norm_eps
        self.project = w.linear(p + "in", ssm.n_inner + ssm.n_convolved + ssm.n_heads, spec.n_embd)
        self.conv = read_convolution(w, p + "conv1d", ssm.n_convolved, ssm.n_taps, silu=True)
        a, d = (w.values(p + name, ssm.n_heads, 1).reshape(-1) for name in "ad")
        bias = w.values(p + "dt.bias", ssm.n_heads)
        self.scan = Scan2(a, d, bias, head_dim=ssm.n_inner // ssm.n_heads, n_state=ssm.n_state, n_groups=ssm.n_groups)
        self.norm = None
        if spec.arch not in NORM_IS_OPTIONAL or w.has(p + "norm.weight"):
            groups = (ssm.n_groups, ssm.n_inner // ssm.n_groups)
            self.norm = Vector(w.values(p + "norm.weight", *groups))
        self.codes = self.project.integer

    def mix(self, h: Rows, slab: RecurrentSlab, batch: Batch) -> Rows:
        projected = linear(h, self.project, batch)
        u = conv1d(projected, self.ssm.n_inner, self.conv, slab, batch)
        y = scan2(u, projected, self.scan, self.ssm.scan_at, slab, batch)
        if self.norm is None:
            return y
        return rms_norm_groups(y, self.norm, self.ssm.n_groups, self.eps, self.out.integer)


class ShortConvolution(Recurrent):
    """``c * conv(b * u)``, where b, c and u are projections of the input."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int, residual: Residual) -> None:
        p = f"blk.{i}.shortconv."
        super().__init__(w, p + "out_proj", spec.n_embd, spec, residual)
        self.project = w.linear(p + "in_proj", 3 * spec.n_embd, spec.n_embd)
        self.conv = read_convolution(w, p + "conv", spec.n_embd, read_taps(w.metadata), silu=False)
        self.codes = self.project.integer

    def mix(self, h: Rows, slab: RecurrentSlab, batch: Batch) -> Rows:
        return gated_conv1d(linear(h, self.project, batch), self.conv, slab, batch)


def read_taps(m: Metadata) -> int:
    """Taps of the short convolution."""
    return m.get_int(f"{m.arch}.shortconv.l_cache", minimum=2, maximum=256)


def read_convolution(w: Weights, name: str, n_channels: int, n_taps: int, *, silu: bool) -> Convolution:
    bias = w.optional_vector(f"{name}.bias", n_channels)
    weight = w.values(f"{name}.weight", n_channels, n_taps)
    return Convolution(weight, None if bias is None else bias.numpy(), silu=silu)
