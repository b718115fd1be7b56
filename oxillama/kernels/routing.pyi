import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.rows import Rows, Vector, Workspace

GATINGS: dict[str, int]

class Routing:
    n: int
    k: int
    n_experts: int
    workspace: Workspace
    @property
    def experts(self) -> NDArray[np.int32]: ...
    @property
    def weights(self) -> NDArray[np.float32]: ...
    @property
    def counts(self) -> NDArray[np.int32]: ...

def route(
    logits: Rows,
    k: int,
    *,
    gating: str = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
    bias: Vector | None = None,
    n_groups: int = 1,
    n_groups_used: int = 1,
) -> Routing: ...
def take_weights(routing: Routing) -> Rows: ...
