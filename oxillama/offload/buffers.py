"""Memory that goes back to the operating system when it is dropped."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["SlotBuffers", "new_buffer"]

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


class SlotBuffers:
    """Memory of slots, by number: of those for experts (True), and of others. It is taken when one is first used."""

    def __init__(self, slot_bytes: Mapping[bool, int]) -> None:
        """`slot_bytes`: of one of each kind."""
        self._slot_bytes = slot_bytes
        self._buffers: dict[bool, dict[int, NDArray[np.uint8]]] = {False: {}, True: {}}

    def of(self, is_expert: bool, slot: int) -> NDArray[np.uint8]:
        buffers = self._buffers[is_expert]
        if slot not in buffers:
            buffers[slot] = new_buffer(self._slot_bytes[is_expert])
        return buffers[slot]

    def drop(self, is_expert: bool, slots: Iterable[int]) -> None:
        for slot in slots:
            self._buffers[is_expert].pop(slot, None)
