from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.matrix import Matrix
from oxillama.kernels.routing import Routing
from oxillama.kernels.rows import Rows

class LowRank:
    a: Matrix | None
    b: Matrix
    table: NDArray[np.uint8] | None
    type: str | None
    rank: int
    scale: float
    nbytes: int
    def __init__(self, a: Matrix | tuple[NDArray[np.uint8], str], b: Matrix, scale: float = ...) -> None: ...

class Adapters:
    def __init__(
        self, lengths: Sequence[int], sets: Sequence[Sequence[tuple[Mapping[Any, LowRank], float]]]
    ) -> None: ...
    def of_rows(self, rows: NDArray[np.int32]) -> Adapters: ...
    def changes(self, *weights: object) -> bool: ...
    def beside(self, x: Rows, weights: tuple[Matrix, ...], address: int) -> tuple[int, int]: ...
    def add_rows(self, y: Rows, looked_up: object, tokens: NDArray[np.int32]) -> None: ...
    def add_heads(self, y: Rows, x: Rows, w: Matrix) -> None: ...
    def add_experts(self, y: Rows, x: Rows, routing: Routing, w: Matrix, by_pair: bool) -> None: ...
