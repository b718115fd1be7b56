"""Which page is read next, and into which slot."""

from __future__ import annotations

from collections.abc import Sequence

from oxillama.kernels.files import at_hand
from oxillama.offload.calls import Call, Page
from oxillama.offload.order import Order
from oxillama.offload.page_cache import PageCache
from oxillama.offload.slots import Slots

__all__ = ["Ahead"]

TOLD = 3  # pages: between gaps, where no system sees a sequence, a disk gave 1.0 GB/s with some, 0.6 with none
BESIDE = 16  # pages: systems read on for 128 kB to 8 MB


class Ahead:
    """What was asked for comes first, then what will be next. For who holds the reader's lock.

    asked: pages, and who waits for them. failed: reading did, so that nothing is read before it is needed. starved:
    something is left to read, and no slot free for it.
    """

    def __init__(self, pages: Sequence[Page], order: Order, *, direct: bool) -> None:
        self.slots = {False: Slots(cyclic=True), True: Slots()}
        self.asked: dict[int, list[Call]] = {}
        self.failed = self.starved = False
        self.cache = PageCache(None if direct else self._is_at_hand)
        self._pages, self._order, self._direct = pages, order, direct
        self._told: set[int] = set()
        self._beside: set[int] = set()
        self._settled = 0

    def next(self) -> tuple[int, int, bool] | None:
        """A page, the slot that is its from now on, and whether it is read past the system's page cache."""
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
        """What the system has in memory is not copied for later, unless there is room: who needs it reads it then."""
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
        """Those to be read after the one that was chosen last, as many as are worth telling the system; each once."""
        ahead = (*self.asked, *self._soon(False))
        found = [page for page in ahead if page not in self._told and not self.cache.saw(page)]
        found = [page for page in found if not (self.cache.will_pass(page) and self._can_pass(page))]
        found = [page for page in found if page not in self.slots[self._pages[page].is_expert]][:TOLD]
        self._told.update(found)
        return [self._pages[page] for page in found]

    def has(self, page: int) -> bool:
        """Whether the page cache has a page. What may be there for having been asked for is not taken to be kept."""
        return self.cache.has(page, brought=page in self._told or page in self._beside)

    def _soon(self, is_expert: bool) -> dict[int, None]:
        """Pages that will be asked for next, as far as is known, for which there can be room beside others."""
        n = len(self.slots[is_expert])
        return dict.fromkeys(self._order.experts(n // 2) if is_expert else self._order.upcoming(n - 1))

    def _passes(self, page: int) -> bool:
        """Whether a page is read past the cache now. If not, the system may read on behind it of its own accord."""
        passes = not self.has(page) and self._can_pass(page) and self.cache.passes(page)
        if not passes and not self.cache.saw(page):
            self._beside.update(range(page + 1, min(page + 1 + BESIDE, len(self._pages))))
        return passes

    def _can_pass(self, page: int) -> bool:
        return self._direct or self._pages[page].source.can_pass_cache

    def _is_at_hand(self, page: int) -> bool:
        p = self._pages[page]
        return at_hand(p.source.fd, p.offset, p.nbytes)

    def follow(self, pages: Sequence[int]) -> bool:
        """A product asked for these. Whether there may be something to read now."""
        self._order.asked_for(pages)
        self._told.difference_update(pages)
        self._beside.difference_update(pages)
        self.failed = False
        self._settled -= len(pages)
        return bool(self.asked) or self._order.experts(1) != [] or not self._is_settled()

    def _is_settled(self) -> bool:
        """Whether nothing is to be read ahead, if that is seen without asking the system."""
        n = len(self.slots[False])
        enough = n // 2 if self.cache.was_seen() else n - 1  # to look after every page costs more than to copy it
        if self._settled < min(enough, n) and self.cache.was_seen() and not self.slots[False].has_room:
            soon = self._soon(False)
            if all(page in self.slots[False] or self.cache.saw(page) for page in soon):
                self._settled = len(soon)
        return self._settled >= min(enough, n)

    def place_expert(self, page: int) -> int | None:
        """A slot for an expert that is read by who needs it."""
        return self.slots[True].place(page, sparing=self._soon(True))
