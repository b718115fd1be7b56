"""Owned cache: values that are kept for one owner each, so that the time that one takes tells nothing of others'."""

from collections.abc import Callable, Hashable
from typing import TypeVar

__all__ = ["OwnedCache"]

V = TypeVar("V")
Bound = tuple[int, int]  # entries and bytes


class OwnedCache(dict[Hashable, dict[Hashable, V]]):
    """Values by owner and key; of both, the last one used is the last to leave. No owner is kept without a value.

    There is no lock, which a fork could leave locked: two threads may each make a value, which are equal.
    """

    def find(self, owner: Hashable, key: Hashable) -> V | None:
        """The value, None if there is none."""
        kept = self.pop(owner, None)
        if kept is None:
            return None
        self[owner] = kept
        value = kept.pop(key, None)
        if value is not None:
            kept[key] = value
        return value

    def put(self, owner: Hashable, key: Hashable, value: V) -> None:
        """Keeps a value, of which `cut` may give up some."""
        self.setdefault(owner, {})[key] = value

    def cut(self, owner: Hashable, size: Callable[[Hashable, V], int], own: Bound, whole: Bound) -> None:
        """Gives up what an owner has beyond `own`, and of the owner that has most what all have beyond `whole`.

        size: bytes of a key and its value.
        """
        sizes = {one: {key: size(key, value) for key, value in list(kept.items())} for one, kept in list(self.items())}
        sums = {one: (len(found), sum(found.values())) for one, found in sizes.items()}

        def drop(one: Hashable) -> int:
            key = next(iter(sizes[one]))
            n_bytes = sizes[one].pop(key)
            sums[one] = sums[one][0] - 1, sums[one][1] - n_bytes
            self._drop(one, key)
            return n_bytes

        while owner in sums and _exceeds(sums[owner], own):
            drop(owner)
        n, n_bytes = sum(one[0] for one in sums.values()), sum(one[1] for one in sums.values())
        while _exceeds((n, n_bytes), whole):
            most = max(sums, key=lambda one: sums[one][0] / whole[0] + sums[one][1] / whole[1])
            n, n_bytes = n - 1, n_bytes - drop(most)

    def _drop(self, owner: Hashable, key: Hashable) -> None:
        kept = self.get(owner, {})
        kept.pop(key, None)
        if not kept:
            self.pop(owner, None)


def _exceeds(found: Bound, most: Bound) -> bool:
    return found[0] > most[0] or found[1] > most[1]
