"""Slot memory, returned to the operating system when dropped."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["SlotBuffers", "new_buffer"]

HUGE = 2 << 20


def new_buffer(n_bytes: int) -> NDArray[np.uint8]:
    """Zeros, uint8 [n_bytes], aligned to a page of memory. Memory counts as used once it is written to.

    The memory is mapped, not from malloc, which keeps part of the freed memory: a budget could not be given back then.
    """
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    memory = mmap.mmap(-1, max(n_bytes, 1), **flags)
    if n_bytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[:n_bytes]


class SlotBuffers:
    """Memory of slots, by kind (experts: True) and number; allocated when a slot is first used."""

    def __init__(self, slot_bytes: Mapping[bool, int]) -> None:
        """`slot_bytes`: bytes of one slot of each kind."""
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
