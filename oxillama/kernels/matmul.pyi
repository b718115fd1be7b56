import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.batch import Batch
from oxillama.kernels.convert import block_size as block_size
from oxillama.kernels.convert import dequantize as dequantize
from oxillama.kernels.convert import quantize as quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Rows, Workspace

def matmul(x: Rows, *weights: Matrix, batch: Batch | None = None) -> list[Rows]: ...
def linear(x: Rows, w: Matrix, batch: Batch | None = None) -> Rows: ...
def linear_add_(y: Rows, x: Rows, w: Matrix, batch: Batch | None = None) -> None: ...
def embed(workspace: Workspace, data: NDArray[np.uint8], type: str, dim: int, tokens: NDArray[np.int32]) -> Rows: ...
