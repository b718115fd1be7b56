"""LoRA targets: the tensor, and the part of it, that each of a model's matrices comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.matrix import Matrix
from oxillama.models.linear import Linear
from oxillama.models.table import Table

# a [.., rank, n_in] and b [.., n_out, rank], whose product b @ a is added to a tensor [.., n_out, n_in].
Factors = tuple[NDArray[np.float32], NDArray[np.float32]]
Share = Callable[[Factors], Factors]


def all_of_it(factors: Factors) -> Factors:
    return factors


def rows(first: int, n: int) -> Share:
    """Changes of a matrix that is some rows of the tensor."""
    return lambda factors: (factors[0], factors[1][first : first + n])


def chosen_rows(places: NDArray[np.intp]) -> Share:
    """Changes of a matrix that is these rows of the tensor, in this order."""
    return lambda factors: (factors[0], factors[1][places])


def one_of_stack(i: int) -> Share:
    """Changes of one of the matrices that the tensor stacks; a factor that all of them share stands once."""
    return lambda factors: (one_of(factors[0], i), one_of(factors[1], i))


def one_of(factor: NDArray[np.float32], i: int) -> NDArray[np.float32]:
    return factor[i % len(factor)] if factor.ndim == 3 else factor


@dataclass(frozen=True, eq=False)
class Part:
    """A matrix or stack of them that a tensor became, a table that rows are looked up in, or a classifier's layer.

    ``share``: from factors of a change of the tensor to those of a change of the part.
    """

    whole: Matrix | Table | Linear
    share: Share = all_of_it


@dataclass(frozen=True, eq=False)
class Adaptable:
    """A tensor that a change of low rank can be added to: its shape as the model takes it, and what became of it."""

    shape: tuple[int, ...]
    parts: list[Part] = field(default_factory=list)
