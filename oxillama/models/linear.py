"""A small linear layer that is computed in Python, as those of classifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Deltas", "Linear", "no_deltas"]

ROWS = 256  # whose products are in memory at a time


@dataclass(frozen=True, eq=False)
class Linear:
    """``weight @ x + bias``: float32 [n_out, n_in] and [n_out], summed in double in an order fixed by shapes."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None

    def __call__(self, x: NDArray[np.float64], deltas: Deltas) -> NDArray[np.float64]:
        y = product(self.weight, x)
        for a, b, scale in deltas(self):
            y += scale * product(b, product(a, x))
        return y if self.bias is None else y + self.bias


def product(matrix: NDArray[np.float32], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """``matrix @ x`` by sums of rows: numpy's products of matrices add in another order on another CPU."""
    y = np.empty(len(matrix))
    for first in range(0, len(matrix), ROWS):
        y[first : first + ROWS] = (matrix[first : first + ROWS] * x).sum(axis=-1)
    return y


# What changes a layer, in an order of its own: scale * b @ a is added to its weight, of [rank, n_in] and [n_out, rank].
Deltas = Callable[[Linear], Sequence[tuple[NDArray[np.float32], NDArray[np.float32], float]]]


def no_deltas(linear: Linear) -> tuple[()]:
    return ()
