"""Memory that goes back to the operating system when it is dropped."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

HUGE = 2 << 20


def new_buffer(n_bytes: int) -> NDArray[np.uint8]:
    """Zeros, uint8 [n_bytes], from the start of a page of memory on. Pages count as used once they are written to.

    The C library keeps part of what is freed for later: a budget could then not be given back.
    """
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    memory = mmap.mmap(-1, max(n_bytes, 1), **flags)
    if n_bytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[:n_bytes]
