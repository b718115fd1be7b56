from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.matmul import Matrix
from oxillama.kernels.rows import Rows

class Routing:
    n: int
    k: int
    experts: NDArray[np.int32]
    weights: NDArray[np.float32]
    counts: NDArray[Any]
    def __init__(self, experts: NDArray[np.int32], weights: NDArray[np.float32], n_experts: int) -> None: ...

def route_softmax(logits: Rows, k: int, normalise: bool) -> Routing: ...
def expert_matmul(x: Rows, routing: Routing, weights: Sequence[Matrix], by_pair: bool = False) -> list[Rows]: ...
def combine_(y: Rows, pairs: Rows, routing: Routing) -> None: ...
