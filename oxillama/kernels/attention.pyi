from typing import Any

from numpy.typing import NDArray

from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows

class KvSlab:
    k: NDArray[Any]
    v: NDArray[Any]
    n_blocks: int
    n_heads: int
    head_dim: int
    block_tokens: int
    f16: bool
    def __init__(self, k: NDArray[Any], v: NDArray[Any]) -> None: ...

def store(k: Rows, v: Rows, slab: KvSlab, batch: Batch) -> None: ...
def attend(q: Rows, slab: KvSlab, batch: Batch, scale: float, window: int = 0) -> Rows: ...
