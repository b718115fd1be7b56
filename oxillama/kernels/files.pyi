import numpy as np
from numpy.typing import NDArray

def read_rows(
    fd: int, offset: int, row_bytes: int, n_rows: int, rows: NDArray[np.int32], out: NDArray[np.uint8]
) -> int: ...
def at_hand(fd: int, offset: int, n_bytes: int) -> bool: ...
