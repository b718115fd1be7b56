from oxillama.kernels.attention import Attention, KvSlab
from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows

class Choice:
    n_heads: int
    k: int
    unit: int
    local: int
    limit: int
    def __init__(self, batch: Batch, k: int, *, unit: int = 1, n_heads: int = 1, local: int = 0) -> None: ...
    @property
    def chooses(self) -> bool: ...
    def take_outputs(self, batch: Batch) -> None: ...

def choose(q: Rows, weights: Rows | None, slab: KvSlab, batch: Batch, choice: Choice, scale: float = 1) -> None: ...
def attend_chosen(q: Rows, slab: KvSlab, batch: Batch, rule: Attention, choice: Choice) -> Rows: ...
