from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.lora import Adapters, LowRank
from oxillama.kernels.rows import Workspace

class Span:
    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    want: str
    slots: tuple[int, int] | None
    windowed: Sequence[int]
    loras: Sequence[tuple[Mapping[Any, LowRank], float]]
    n_source: int
    def __init__(
        self,
        tokens: Sequence[int],
        start: int,
        block_table: Sequence[int],
        want: str = "last",
        slots: tuple[int, int] | None = None,
        windowed: Sequence[int] = (),
        loras: Sequence[tuple[Mapping[Any, LowRank], float]] = (),
        n_source: int = 0,
    ) -> None: ...

class Batch:
    n_rows: int
    n_spans: int
    tokens: NDArray[np.int32]
    poll: Callable[[], None]
    adapters: Adapters | None
    spans: Sequence[Span]
    workspace: Workspace
    @property
    def positions(self) -> NDArray[np.int32]: ...
    @property
    def outputs(self) -> Batch: ...
    @property
    def output_rows(self) -> NDArray[np.int32]: ...
    def __init__(
        self,
        spans: Sequence[Span],
        workspace: Workspace,
        poll: Callable[[], None] | None = None,
        adapters: Adapters | None = None,
        *,
        every_row: bool = False,
    ) -> None: ...

def divide(
    rows: NDArray[np.float32], spans: Sequence[Span], every_row: bool = False
) -> list[NDArray[np.float32] | int | None]: ...
