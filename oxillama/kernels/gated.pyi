from oxillama.kernels.batch import Batch
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Rows

def gated(
    x: Rows,
    gate: Matrix,
    up: Matrix,
    activation: str,
    codes: bool = ...,
    limit: float = ...,
    batch: Batch | None = None,
) -> Rows: ...
