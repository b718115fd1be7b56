from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.lora import Adapters
from oxillama.kernels.rows import Workspace

Slots = tuple[int, int] | None
Span = (
    tuple[Sequence[int], int, Sequence[int]]
    | tuple[Sequence[int], int, Sequence[int], Slots]
    | tuple[Sequence[int], int, Sequence[int], Slots, Sequence[int]]
)

class Batch:
    n_rows: int
    n_spans: int
    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    poll: Callable[[], None]
    adapters: Adapters | None
    workspace: Workspace
    @property
    def outputs(self) -> Batch: ...
    @property
    def output_rows(self) -> NDArray[np.int32]: ...
    def __init__(
        self,
        spans: Sequence[Span],
        workspace: Workspace,
        poll: Callable[[], None] | None = None,
        wants: Sequence[str] | None = None,
        adapters: Adapters | None = None,
    ) -> None: ...
