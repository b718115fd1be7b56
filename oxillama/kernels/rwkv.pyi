from typing import Any

from numpy.typing import NDArray

from oxillama.kernels.batch import Batch
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Rows

class Rwkv7:
    n_heads: int
    width: int
    eps: float
    def __init__(
        self,
        w0: NDArray[Any],
        k_k: NDArray[Any],
        k_a: NDArray[Any],
        r_k: NDArray[Any],
        weight: NDArray[Any],
        bias: NDArray[Any],
        *,
        width: int,
        eps: float,
    ) -> None: ...

def rwkv7(r: Rows, w: Rows, k: Rows, v: Rows, a: Rows, mix: Rwkv7, slab: RecurrentSlab, batch: Batch) -> Rows: ...
