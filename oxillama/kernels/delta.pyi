from typing import Any

from numpy.typing import NDArray

from oxillama.kernels.batch import Batch
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Rows

class Delta:
    n_keys: int
    n_heads: int
    k_dim: int
    v_dim: int
    n_values: int
    neighbours: bool
    eps: float
    def __init__(
        self,
        a: NDArray[Any],
        dt_bias: NDArray[Any],
        norm: NDArray[Any],
        *,
        k_dim: int,
        n_keys: int,
        eps: float,
        neighbours: bool,
    ) -> None: ...

def delta(x: Rows, z: Rows, dt: Rows, beta: Rows, rule: Delta, at: int, slab: RecurrentSlab, batch: Batch) -> Rows: ...
