"""Slot table: pages in slots, and their eviction. Computes with numbers only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

__all__ = ["Slots"]


class Slots:
    """A number of slots for pages, each page in one at most.

    Pages are held while a product uses them or a thread reads into them. Others may be evicted: the least recently used
    first, or, where pages are needed in a cycle, the most recently used, whose slot is also likeliest to be in the
    CPU's cache.
    """

    def __init__(self, n: int = 0, *, cyclic: bool = False) -> None:
        self._cyclic = cyclic
        self._free = list(range(n - 1, -1, -1))
        self._n_ids = n
        self._slots: OrderedDict[int, int] = OrderedDict()  # page -> slot, least recently used first
        self._holders: dict[int, int] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._slots

    def __len__(self) -> int:
        """Number of slots."""
        return len(self._free) + len(self._slots)

    @property
    def has_room(self) -> bool:
        """Whether a page can be placed without an eviction."""
        return bool(self._free)

    def slot(self, page: int) -> int:
        return self._slots[page]

    def hold(self, page: int) -> None:
        """Keeps a page in its slot from eviction, and counts it as used now."""
        self._holders[page] = self._holders.get(page, 0) + 1
        self._slots.move_to_end(page)

    def let_go(self, page: int) -> None:
        n = self._holders.pop(page) - 1
        if n:
            self._holders[page] = n

    def place(self, page: int, *, sparing: Container[int] = ()) -> int | None:
        """A slot for a page that has none; the page is held from now on. None if no page may be evicted for it.

        Pages in `sparing` are not evicted.
        """
        if not self._free:
            pages = reversed(self._slots) if self._cyclic else iter(self._slots)
            leaving = next((p for p in pages if p not in self._holders and p not in sparing), None)
            if leaving is None:
                return None
            self._free.append(self._slots.pop(leaving))
        slot = self._slots[page] = self._free.pop()
        self._holders[page] = 1
        return slot

    def drop(self, page: int) -> None:
        """Drops a page that is held once, because its read failed."""
        del self._holders[page]
        self._free.append(self._slots.pop(page))

    def forget(self, page: int) -> None:
        """Drops a page that is not held, if it has a slot."""
        slot = self._slots.pop(page, None)
        if slot is not None:
            self._free.append(slot)

    def release_all(self) -> None:
        """Releases all holds."""
        self._holders.clear()

    def resize(self, n: int) -> list[int]:
        """Sets the number of slots, while nothing is held. Returns the numbers of the removed ones."""
        while len(self) < n:
            self._free.append(self._n_ids)
            self._n_ids += 1
        gone = []
        while len(self) > n:
            if not self._free:
                self._free.append(self._slots.popitem(last=False)[1])
            gone.append(self._free.pop())
        return gone
