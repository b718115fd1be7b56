"""Model of the system's page cache, learned by probing it. Computes with page numbers only."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PageCache"]

FIRST, MOST = 4, 64


class PageCache:
    """Record of the pages that the page cache keeps, and of those that are better read past it.

    A page that was read through the cache, and is gone when it is needed again, takes room from other pages without
    use, and reading past the cache is faster. So such a page is read past it the next FIRST times; then through it
    again, since there may be room by now; and if it is gone again, past it twice as often as before, up to MOST times.
    """

    def __init__(self, probe: Callable[[int], bool] | None) -> None:
        """`probe`: whether the cache has a page now. None: no read goes through the cache."""
        self._probe = probe
        self._seen: set[int] = set()
        self._through: set[int] = set()  # read through the cache, or seen there
        self._left: dict[int, int] = {}  # how often it is still read past the cache
        self._turns: dict[int, int] = {}  # how often at first

    def has(self, page: int, *, brought: bool = False) -> bool:
        """Whether the page is in the cache, by a probe now or by the last one, if nothing was missed since.

        brought: advice may have brought the page for its next use, so that its presence doesn't show that it is kept.
        """
        if page in self._seen:
            return True
        if self._probe is None or not self._probe(page):
            return False
        if not brought:
            self._seen.add(page)
            self._left.pop(page, None)
            self._turns.pop(page, None)
        if page not in self._left:
            self._through.add(page)
        return True

    def saw(self, page: int) -> bool:
        """Whether the last probe found the page, without a probe now."""
        return page in self._seen

    def was_seen(self) -> bool:
        """Whether any page is taken to be in the cache."""
        return bool(self._seen)

    def missed(self) -> None:
        """A page expected in the cache was not there: others may be gone, too."""
        self._seen.clear()

    def will_pass(self, page: int) -> bool:
        """Whether a page that is not in the cache would be read past it."""
        return self._probe is None or page in self._left or page in self._through

    def passes(self, page: int) -> bool:
        """Whether a page is read past the cache now, and counts as read."""
        if not self.will_pass(page):
            self._through.add(page)
            return False
        if page not in self._left:
            self._left[page] = self._turns[page] = min(2 * self._turns.get(page, FIRST // 2), MOST)
            self._through.discard(page)
        self._left[page] -= 1
        if not self._left[page]:
            del self._left[page]
        return True
