from typing import Any

from numpy.typing import NDArray

from oxillama.kernels.batch import Batch
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Rows, Vector

class Convolution:
    n_channels: int
    n_taps: int
    n_values: int
    silu: bool
    def __init__(self, w: NDArray[Any], bias: NDArray[Any] | None = ..., *, silu: bool = ...) -> None: ...

class Scan1:
    n_channels: int
    n_state: int
    n_values: int
    def __init__(self, a: NDArray[Any], d: NDArray[Any]) -> None: ...

class Scan2:
    n_channels: int
    n_heads: int
    head_dim: int
    n_groups: int
    n_state: int
    n_values: int
    def __init__(
        self,
        a: NDArray[Any],
        d: NDArray[Any],
        dt_bias: NDArray[Any],
        *,
        head_dim: int,
        n_state: int,
        n_groups: int = ...,
    ) -> None: ...

def conv1d(x: Rows, first: int, conv: Convolution, slab: RecurrentSlab, batch: Batch) -> Rows: ...
def gated_conv1d(x: Rows, conv: Convolution, slab: RecurrentSlab, batch: Batch) -> Rows: ...
def scan1(x: Rows, dt: Rows, bc: Rows, z: Rows, scan: Scan1, at: int, slab: RecurrentSlab, batch: Batch) -> Rows: ...
def scan2(x: Rows, projected: Rows, scan: Scan2, at: int, slab: RecurrentSlab, batch: Batch) -> Rows: ...
def columns(x: Rows, first: int, n: int) -> Rows: ...
def rms_norm_columns_(x: Rows, first: int, w: Vector, eps: float) -> None: ...
