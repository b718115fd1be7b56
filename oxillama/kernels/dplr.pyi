from typing import Any

from numpy.typing import NDArray

from oxillama.kernels.batch import Batch
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Rows, Vector

class ChannelDelta:
    n_heads: int
    dim: int
    eps: float
    bound: float
    def __init__(
        self, a: NDArray[Any], dt_bias: NDArray[Any], norm: NDArray[Any], *, eps: float, bound: float = 0
    ) -> None: ...

def dplr(
    q: Rows, w: Rows, k: Rows, a: Rows, b: Rows, v: Rows, n_heads: int, slab: RecurrentSlab, batch: Batch
) -> Rows: ...
def decaying(q: Rows, k: Rows, v: Rows, decays: Vector, n_heads: int, slab: RecurrentSlab, batch: Batch) -> Rows: ...
def channel_delta(
    q: Rows,
    k: Rows,
    v: Rows,
    gate: Rows,
    steps: Rows,
    beta: Rows,
    rule: ChannelDelta,
    slab: RecurrentSlab,
    batch: Batch,
) -> Rows: ...
