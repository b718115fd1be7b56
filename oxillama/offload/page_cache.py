"""What the system's page cache keeps of a file, as far as was seen: numbers alone."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PageCache"]

FIRST, MOST = 4, 64


class PageCache:
    """Tells which pages are at hand, and which had better be read past the cache.

    What was read through the cache and was gone when it was needed again takes room there from others for nothing, and
    reading past it is faster. So such a page is read past it the next FIRST times; then through it again, since there
    may be room by now; and if it is gone again past it twice as often as before, up to MOST times.
    """

    def __init__(self, probe: Callable[[int], bool] | None) -> None:
        """`probe`: whether the system has a page now. None: nothing goes through the cache."""
        self._probe = probe
        self._seen: set[int] = set()
        self._through: set[int] = set()  # read through the cache, or seen there
        self._left: dict[int, int] = {}  # how often it is still read past the cache
        self._turns: dict[int, int] = {}  # how often at first

    def has(self, page: int, *, brought: bool = False) -> bool:
        """Whether it is at hand, or was when that was last seen and nothing has been missed since.

        brought: it may have been brought for the use to come, so that its being there is no sign that it is kept.
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
        """The same without looking now."""
        return page in self._seen

    def was_seen(self) -> bool:
        """Whether any page is taken to be at hand."""
        return bool(self._seen)

    def missed(self) -> None:
        """What should have been at hand was not: others may be gone, too."""
        self._seen.clear()

    def will_pass(self, page: int) -> bool:
        """Whether a page that is not at hand would be read past the cache."""
        return self._probe is None or page in self._left or page in self._through

    def passes(self, page: int) -> bool:
        """The same for one that is read now."""
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
