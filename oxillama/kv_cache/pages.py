"""Memory pages of arrays: released to the operating system while their addresses stay, and kept small."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["begin_small", "release_rows"]

# Linux promises that such pages read as zeros afterwards (madvise(2)); elsewhere the advice may do nothing, or later.
LINUX = sys.platform == "linux"
HUGE = 2 << 20


def release_rows(array: NDArray[Any], rows: Iterable[int]) -> int:
    """Gives back the memory pages that lie within rows [i] of an array, whose contents are lost: zeros, or as before.

    Returns the bytes released from memory; 0 where the system is not Linux. The array's memory must be its own and
    writable, and each row contiguous; those rows must not be in use meanwhile.
    """
    if not LINUX:
        return 0
    stride, start, page = array.strides[0], array.ctypes.data, mmap.PAGESIZE
    released = 0
    for first, end in _runs(rows):
        low, high = -(-(start + first * stride) // page) * page, (start + end * stride) // page * page
        if low < high:
            n = _resident(low, high - low)
            if n and not ctypes.CDLL(None).madvise(
                ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_DONTNEED
            ):
                released += n
    return released


def begin_small(array: NDArray[Any]) -> None:
    """Keeps the first 2 MB of an array in small pages, if it is in huge ones: what is written first is often all.

    numpy asks for huge pages from 4 MB on. With those, the first token of a model of 16 layers takes 2 MB for the keys
    and values of each, 12 MB of a process that has no more than a short text in its cache.
    """
    if LINUX and array.nbytes >= 2 * HUGE and hasattr(mmap, "MADV_NOHUGEPAGE"):
        page = mmap.PAGESIZE
        low = -(-array.ctypes.data // page) * page
        high = -(-low // HUGE) * HUGE + HUGE  # the first whole one that could be huge
        ctypes.CDLL(None).madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_NOHUGEPAGE)


def _runs(rows: Iterable[int]) -> list[tuple[int, int]]:
    """(first, end) of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for i in sorted(rows):
        if runs and runs[-1][1] == i:
            runs[-1] = runs[-1][0], i + 1
        else:
            runs.append((i, i + 1))
    return runs


def _resident(address: int, n_bytes: int) -> int:
    """Bytes of whole pages that are in memory."""
    vector = np.zeros(n_bytes // mmap.PAGESIZE, np.uint8)
    ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), ctypes.c_void_p(vector.ctypes.data))
    return int(np.count_nonzero(vector & 1)) * mmap.PAGESIZE
