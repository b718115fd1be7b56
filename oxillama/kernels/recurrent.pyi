import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.batch import Batch

class RecurrentSlab:
    n_slots: int
    n_values: int
    data: NDArray[np.float32]
    def __init__(self, n_slots: int, n_values: int) -> None: ...
    def check_batch(self, batch: Batch) -> None: ...
