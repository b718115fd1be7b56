"""Linear attention by the gated delta rule, as Qwen3-Next and Qwen3.5 have it in three of four layers.

Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024; Qwen, "Qwen3-Next", 2025. Files hold -exp(A_log) as
``ssm_a``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import MissingTensorError
from oxillama.kernels.batch import Batch
from oxillama.kernels.delta import Delta, delta
from oxillama.kernels.matmul import matmul
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Rows
from oxillama.kernels.ssm import conv1d
from oxillama.models.adaptable import chosen_rows
from oxillama.models.delta_spec import DeltaSpec
from oxillama.models.layers import Residual
from oxillama.models.mamba import Recurrent, read_convolution
from oxillama.models.spec import ModelSpec
from oxillama.models.weights import Weights


class GatedDelta(Recurrent):
    """``out(norm(rule(silu(conv(q, k, v)), steps, beta)) * silu(z))``, where all six are projections of the input."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int, residual: Residual) -> None:
        assert spec.delta is not None
        p, sizes = f"blk.{i}.", spec.delta
        super().__init__(w, p + "ssm_out", sizes.n_inner, spec, residual)
        self.project, self.gate = read_projections(w, p, sizes, spec.n_embd)
        self.steps, self.beta = read_steps(w, p, sizes, spec.n_embd)
        self.conv = read_convolution(w, p + "ssm_conv1d", sizes.n_convolved, sizes.n_taps, silu=True)
        self.rule = Delta(
            w.values(p + "ssm_a", sizes.n_heads),
            w.values(p + "ssm_dt.bias", sizes.n_heads),
            w.values(p + "ssm_norm.weight", sizes.v_dim),
            k_dim=sizes.k_dim,
            n_keys=sizes.n_keys,
            eps=spec.norm_eps,
            neighbours=sizes.neighbours,
        )
        self.at, self.codes = sizes.rule_at, self.project.integer

    def mix(self, h: Rows, slab: RecurrentSlab, batch: Batch) -> Rows:
        projected, z, steps, beta = matmul(h, self.project, self.gate, self.steps, self.beta, batch=batch)
        return delta(conv1d(projected, 0, self.conv, slab, batch), z, steps, beta, self.rule, self.at, slab, batch)


def read_projections(w: Weights, p: str, sizes: DeltaSpec, n_embd: int) -> tuple[Matrix, Matrix]:
    """The matrix of queries, keys and values, and that of gates.

    Qwen3-Next's files of 2025 have both in one tensor: for each head of keys, its query, its key, values and gates.
    """
    joint, n = f"{p}ssm_in.weight", sizes.n_convolved + sizes.n_inner
    if not sizes.joint:
        return w.linear(f"{p}attn_qkv", sizes.n_convolved, n_embd), w.linear(f"{p}attn_gate", sizes.n_inner, n_embd)
    k, values = sizes.k_dim, sizes.n_inner // sizes.n_keys
    places = np.arange(n).reshape(sizes.n_keys, 2 * (k + values))
    parts = [part.ravel() for part in np.split(places, [k, 2 * k, 2 * k + values], axis=1)]
    project, gate = picked(w, joint, (n, n_embd), np.concatenate(parts[:3]), parts[3])
    return project, gate


def read_steps(w: Weights, p: str, sizes: DeltaSpec, n_embd: int) -> tuple[Matrix, Matrix]:
    """The matrices of time steps and of beta, a row for each head.

    Qwen3-Next has both in one tensor: for each head of keys, the rows of beta and then those of time steps.
    """
    joint, n = f"{p}ssm_ba.weight", sizes.n_heads
    if joint not in w:
        if f"{p}ssm_alpha.weight" not in w:
            raise MissingTensorError(f"tensor {p}ssm_alpha.weight is missing, and so is {joint}")
        return w.linear(f"{p}ssm_alpha", n, n_embd), w.linear(f"{p}ssm_beta", n, n_embd)
    places = np.arange(2 * n).reshape(sizes.n_keys, 2, -1)
    steps, beta = picked(w, joint, (2 * n, n_embd), places[:, 1].ravel(), places[:, 0].ravel())
    return steps, beta


def picked(w: Weights, name: str, shape: tuple[int, int], *parts: NDArray[np.intp]) -> list[Matrix]:
    """Matrices of these rows of a tensor, which are copied."""
    info = w.tensor(name, shape)
    made = []
    for rows in parts:
        data = info.data.reshape(shape[0], -1)[rows].tobytes()
        made.append(w.rearranged(name, data, info.type, len(rows), shape[1]))
        w.adapts(name, shape, made[-1], chosen_rows(rows))
    return made
