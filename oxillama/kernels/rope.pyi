import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows

def angles(batch: Batch, frequencies: NDArray[np.float64], magnitude: float) -> Rows: ...
def rotate_(x: Rows, cos_sin: Rows, head_dim: int, neox: bool) -> None: ...
