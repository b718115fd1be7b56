"""Read-ahead policy: the next page to read, and its slot."""

from __future__ import annotations

from collections.abc import Sequence

from oxillama.kernels.files import is_cached
from oxillama.offload.calls import Page, PageRequest
from oxillama.offload.order import AccessOrder
from oxillama.offload.page_cache import PageCache
from oxillama.offload.slots import Slots

__all__ = ["Prefetcher"]

ADVISED = 3  # pages: between gaps, where no system sees a sequence, a disk gave 1.0 GB/s with advice, 0.6 without
BESIDE = 16  # pages: systems read on for 128 kB to 8 MB


class Prefetcher:
    """Order of reads: requested pages first, then the pages expected next. Callers hold the reader's lock.

    asked: pages, with the requests that wait for them. failed: a read failed, so that nothing is prefetched. starved:
    something is left to read, but no slot is free.
    """

    def __init__(self, pages: Sequence[Page], order: AccessOrder, *, direct: bool) -> None:
        self.slots = {False: Slots(cyclic=True), True: Slots()}
        self.asked: dict[int, list[PageRequest]] = {}
        self.failed = self.starved = False
        self.cache = PageCache(None if direct else self._is_cached)
        self._pages, self._order, self._direct = pages, order, direct
        self._told: set[int] = set()
        self._beside: set[int] = set()
        self._settled = 0

    def next(self) -> tuple[int, int, bool] | None:
        """The next page, its slot, and whether the read bypasses the system's page cache; None if nothing is to do."""
        self.starved = False
        found = self._of_asked() or (None if self.failed else self._of_soon())
        return found and (*found, self._passes(found[0]))

    def _of_asked(self) -> tuple[int, int] | None:
        for page in self.asked:
            is_expert = self._pages[page].is_expert
            slots = self.slots[is_expert]
            if page not in slots:
                slot = slots.place(page, sparing=self._soon(is_expert))
                slot = slots.place(page) if slot is None else slot
                if slot is not None:
                    return page, slot
                self.starved = True
        return None

    def _of_soon(self) -> tuple[int, int] | None:
        """The next page to prefetch, and its slot.

        A page in the page cache is not copied unless there is room: the product that needs it reads it from there.
        """
        for is_expert in (True, False):
            slots, soon = self.slots[is_expert], self._soon(is_expert)
            for page in soon:
                if page not in slots and (slots.has_room or not self.has(page)):
                    slot = slots.place(page, sparing=soon)
                    if slot is not None:
                        return page, slot
                    self.starved = True
                    break
            self._settled = len(soon)
        return None

    def following(self) -> list[Page]:
        """Pages to be read after the one chosen last, as many as the system is advised of; each once."""
        ahead = (*self.asked, *self._soon(False))
        found = [page for page in ahead if page not in self._told and not self.cache.saw(page)]
        found = [page for page in found if not (self.cache.will_pass(page) and self._can_pass(page))]
        found = [page for page in found if page not in self.slots[self._pages[page].is_expert]][:ADVISED]
        self._told.update(found)
        return [self._pages[page] for page in found]

    def has(self, page: int) -> bool:
        """Whether the page cache has a page. A page that advice may have brought there is not taken to be kept."""
        return self.cache.has(page, brought=page in self._told or page in self._beside)

    def _soon(self, is_expert: bool) -> dict[int, None]:
        """Pages expected to be requested next, for which there can be room."""
        n = len(self.slots[is_expert])
        return dict.fromkeys(self._order.experts(n // 2) if is_expert else self._order.upcoming(n - 1))

    def _passes(self, page: int) -> bool:
        """Whether a page is read past the cache now. If not, the system may read ahead of it on its own."""
        passes = not self.has(page) and self._can_pass(page) and self.cache.passes(page)
        if not passes and not self.cache.saw(page):
            self._beside.update(range(page + 1, min(page + 1 + BESIDE, len(self._pages))))
        return passes

    def _can_pass(self, page: int) -> bool:
        return self._direct or self._pages[page].source.can_pass_cache

    def _is_cached(self, page: int) -> bool:
        p = self._pages[page]
        return is_cached(p.source.fd, p.offset, p.nbytes)

    def follow(self, pages: Sequence[int]) -> bool:
        """Takes note of the pages that a product requested. Returns whether there may be something to read."""
        self._order.asked_for(pages)
        self._told.difference_update(pages)
        self._beside.difference_update(pages)
        self.failed = False
        self._settled -= len(pages)
        return bool(self.asked) or self._order.experts(1) != [] or not self._is_settled()

    def _is_settled(self) -> bool:
        """Whether nothing is to be prefetched, as far as is known without a system call."""
        n = len(self.slots[False])
        enough = n // 2 if self.cache.was_seen() else n - 1  # probing the cache for every page costs more than a copy
        if self._settled < min(enough, n) and self.cache.was_seen() and not self.slots[False].has_room:
            soon = self._soon(False)
            if all(page in self.slots[False] or self.cache.saw(page) for page in soon):
                self._settled = len(soon)
        return self._settled >= min(enough, n)

    def place_expert(self, page: int) -> int | None:
        """A slot for an expert's page that the product itself reads."""
        return self.slots[True].place(page, sparing=self._soon(True))
