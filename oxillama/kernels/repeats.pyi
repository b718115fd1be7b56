import numpy as np
from numpy.typing import NDArray

def repeat_lengths(tokens: NDArray[np.int32], limit: int, least: int) -> dict[int, int]: ...
