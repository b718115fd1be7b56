from oxillama.kernels.matrix import Matrix
from oxillama.kernels.routing import Routing
from oxillama.kernels.rows import Rows

def expert_hidden(
    x: Rows, routing: Routing, gate: Matrix | None, up: Matrix, activation: str = "silu", codes: bool = False
) -> Rows: ...
def expert_add_(y: Rows, hidden: Rows, routing: Routing, down: Matrix) -> None: ...
