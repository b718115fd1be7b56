import numpy as np
from numpy.typing import NDArray

def log_sum_exp(row: NDArray[np.float32]) -> float: ...
