"""Release of mapped pages to the operating system."""

import numpy as np
from numpy.typing import NDArray

from oxillama.gguf._mapping import Mapping

__all__ = ["release_pages"]


def release_pages(data: NDArray[np.uint8]) -> None:
    """Drops a mapped tensor's pages from this process; they are read from the file again on the next access.

    Repacked weights don't need them any more: without this, a model would be resident twice. Arrays that are not views
    of a mapped file are left alone.
    """
    root: object = data
    while isinstance(root, np.ndarray) and root.base is not None:
        parent = root.base
        if not isinstance(parent, np.ndarray):
            break
        root = parent
    if not isinstance(root, np.ndarray):
        return
    mapped = root.base.obj if isinstance(root.base, memoryview) else root.base
    if isinstance(mapped, Mapping):
        mapped.release(data.ctypes.data - root.ctypes.data, data.nbytes)
