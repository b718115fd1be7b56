from oxillama.kernels.batch import Batch
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.routing import Routing
from oxillama.kernels.rows import Rows

def expert_hidden(
    x: Rows,
    routing: Routing,
    gate: Matrix | None,
    up: Matrix,
    activation: str = "silu",
    codes: bool = False,
    limit: float = 0.0,
    batch: Batch | None = None,
) -> Rows: ...
def expert_hidden_joint(
    x: Rows, routing: Routing, both: Matrix, activation: str = "silu", batch: Batch | None = None
) -> Rows: ...
def expert_add_(y: Rows, hidden: Rows, routing: Routing, down: Matrix, batch: Batch | None = None) -> None: ...
