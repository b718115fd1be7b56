import numpy as np
from numpy.typing import NDArray

def json_of(values: NDArray[np.float32]) -> bytes: ...
