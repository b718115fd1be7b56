"""Factors of a low-rank change, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import LoraError

__all__ = ["MAX_RANK", "Change", "check_shapes"]

# Above the rank of any adapter, and far below ranks that would exhaust memory.
MAX_RANK = 1 << 12


@dataclass(frozen=True, eq=False)
class Change:
    """``scale * b @ a`` is added to a tensor [.., n_out, n_in]: float32 a [.., rank, n_in] and b [.., n_out, rank].

    ``lookups``: the change is of an embedding's lookups only, even if the output uses the same tensor.
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]
    scale: float
    lookups: bool = False

    @property
    def rank(self) -> int:
        return int(self.a.shape[-2])


def check_shapes(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raises LoraError, which names the tensor, unless these shapes can be those of factors. Reads no values."""
    if not 2 <= len(a) <= 3 or len(a) != len(b):
        raise LoraError(f"{name}: factors of shapes {a} and {b}; two matrices are needed, or two stacks of matrices")
    if a[-2] != b[-1]:
        raise LoraError(f"{name}: factors of shapes {a} and {b}, whose ranks {a[-2]} and {b[-1]} differ")
    if not 1 <= a[-2] <= MAX_RANK:
        raise LoraError(f"{name}: rank {a[-2]}; it must lie in 1..{MAX_RANK}")
    if min(*a, *b) < 1:
        raise LoraError(f"{name}: factors of shapes {a} and {b} hold nothing")
    if len(a) == 3 and min(a[0], b[0]) not in (1, max(a[0], b[0])):
        raise LoraError(f"{name}: stacks of {a[0]} and {b[0]} matrices don't go together")


def check_values(name: str, values: NDArray[Any]) -> None:
    """Raises LoraError, which names the tensor, for NaN and infinity."""
    bad = ~np.isfinite(values)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise LoraError(f"{name}: the value at {place} is {values[place]}; weights must be finite")


def check_scale(name: str, scale: float) -> float:
    """A change's own factor, from alpha and rank. Raises LoraError unless it is finite."""
    if not math.isfinite(scale) or abs(scale) > 1e6:
        raise LoraError(f"{name}: alpha and rank make a scale of {scale}; at most a million can be")
    return scale
