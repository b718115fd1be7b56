from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.rows import Vector

class Matrix:
    name: str
    type: str
    n_out: int
    n_in: int
    n_experts: int
    repacked: bool
    integer: bool
    rounds: bool
    bias: Vector | None
    shape: tuple[int, ...]
    nbytes: int
    raw_nbytes: int
    file_nbytes: int
    held_nbytes: int
    panels_nbytes: int
    has_panels: bool
    data: NDArray[np.uint8] | None
    panels: NDArray[np.uint8] | None
    pager: object | None
    row_bytes: int
    from_memory: bool
    def __init__(
        self,
        data: NDArray[np.uint8],
        type: str,
        shape: tuple[int, ...],
        *,
        bias: Vector | None = ...,
        name: str = ...,
        repack: bool = ...,
        rounds: bool = ...,
    ) -> None: ...
    def repack(
        self,
        *,
        num_threads: int = ...,
        release: Callable[[NDArray[np.uint8]], None] | None = ...,
        allocate: Callable[[int], NDArray[np.uint8]] | None = ...,
    ) -> None: ...
    def hold(self, data: NDArray[np.uint8]) -> None: ...
    def hold_panels(self, data: NDArray[np.uint8]) -> None: ...
    def page(self, pager: object, first_page: int, page_panels: int, *, in_panels: bool = False) -> None: ...
