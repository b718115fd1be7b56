"""Owned cache: values that are kept for one owner each, so that the time that one takes tells nothing of others'."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, NamedTuple, TypeVar

from oxillama._util.fork import renew_at_fork

__all__ = ["Bound", "OwnedCache"]

V = TypeVar("V")
T = TypeVar("T")
SPARE = 64  # ranks beyond two for each owner, from which on they are made anew


class Bound(NamedTuple):
    """Most that is kept: entries, and bytes."""

    entries: int
    n_bytes: int


class _Rank(NamedTuple):
    """Place of a share: the larger come first, then the one whose last use is longer ago. No two numbers are equal."""

    most: float
    used: int
    number: int
    owner: Hashable


class _Entry(Generic[V]):
    """One value, the owner that it is kept for, and its size when it was last measured. is_kept: not given up yet."""

    __slots__ = ("is_kept", "key", "n_bytes", "owner", "value")

    def __init__(self, owner: Hashable, key: Hashable, value: V, n_bytes: int) -> None:
        self.owner, self.key, self.n_bytes = owner, key, n_bytes
        self.value: V | None = value
        self.is_kept = True


class _Share(Generic[V]):
    """The entries of one owner, the one that was used last at the end.

    used: number of the last use of any of them. rank: the share's place in the order of the shares by size.
    """

    __slots__ = ("entries", "n_bytes", "rank", "used")

    def __init__(self) -> None:
        self.entries: OrderedDict[Hashable, _Entry[V]] = OrderedDict()
        self.n_bytes = self.used = 0
        self.rank: _Rank | None = None


class _Content(Generic[V]):
    """Entries of a cache, with their sums; used by one thread at a time. Nothing in it refers back to what holds it.

    ranks: heap with the largest share first, and among equals the one that wasn't used for the longest time. The rank
    that a share refers to is the true one or comes before it; others are out of date. watched: entries to be measured
    again, the one that was measured first in front.
    """

    def __init__(self, own: Bound, whole: Bound) -> None:
        self.own, self.whole = own, whole
        self.shares: dict[Hashable, _Share[V]] = {}
        self.n = self.n_bytes = 0
        self.ranks: list[_Rank] = []
        self.watched: deque[_Entry[V]] = deque()
        self._n_uses = self._n_ranks = 0

    def find(self, owner: Hashable, key: Hashable) -> V | None:
        share = self.shares.get(owner)
        entry = None if share is None else share.entries.get(key)
        if share is None or entry is None:
            return None
        self._use(share, key)
        return entry.value

    def put(self, entry: _Entry[V], watch: bool) -> tuple[V | None, list[V | None]]:
        """Adds an entry unless its key is there; the value that counts, and those that were given up for it."""
        share = self.shares.get(entry.owner)
        if share is None:
            share = self.shares[entry.owner] = _Share()
        found = share.entries.get(entry.key)
        if found is not None:
            self._use(share, entry.key)
            return found.value, []
        share.entries[entry.key] = entry
        share.n_bytes += entry.n_bytes
        self.n, self.n_bytes = self.n + 1, self.n_bytes + entry.n_bytes
        self._use(share, entry.key)
        if watch:
            self.watched.append(entry)
        return entry.value, self._grown(entry.owner, share)

    def next_watched(self, n: int) -> list[tuple[_Entry[V], V | None]]:
        """The next n entries to be measured, which go to the end of those that are watched, and their values."""
        found = list[tuple[_Entry[V], V | None]]()
        for _ in range(min(n, len(self.watched))):
            entry = self.watched.popleft()
            if entry.is_kept:
                self.watched.append(entry)
                found.append((entry, entry.value))
        return found

    def resize(self, sizes: list[tuple[_Entry[V], int]]) -> list[V | None]:
        """Takes note of sizes that were measured; the values that were given up for them."""
        gone: list[V | None] = []
        for entry, n_bytes in sizes:
            share = self.shares.get(entry.owner)
            if share is not None and share.entries.get(entry.key) is entry and n_bytes != entry.n_bytes:
                more, entry.n_bytes = n_bytes - entry.n_bytes, n_bytes
                share.n_bytes += more
                self.n_bytes += more
                gone += self._grown(entry.owner, share)
        return gone

    def _use(self, share: _Share[V], key: Hashable) -> None:
        share.entries.move_to_end(key)
        self._n_uses += 1
        share.used = self._n_uses

    def _grown(self, owner: Hashable, share: _Share[V]) -> list[V | None]:
        """Gives up what a share that grew has beyond its bound, and of the largest what all have beyond theirs."""
        self._rank(owner, share)
        gone: list[V | None] = []
        while _exceeds(len(share.entries), share.n_bytes, self.own):
            gone.append(self._drop(owner, share))
        while _exceeds(self.n, self.n_bytes, self.whole):
            gone.append(self._drop(*self._largest()))
        return gone

    def _drop(self, owner: Hashable, share: _Share[V]) -> V | None:
        """Gives up the value of a share that wasn't used for the longest time; it is the caller's to free."""
        _, entry = share.entries.popitem(last=False)
        share.n_bytes -= entry.n_bytes
        self.n, self.n_bytes = self.n - 1, self.n_bytes - entry.n_bytes
        if not share.entries:
            del self.shares[owner]
        value, entry.value, entry.is_kept = entry.value, None, False
        return value

    def _largest(self) -> tuple[Hashable, _Share[V]]:
        """The first share by rank. A share that shrank or was used gets its true rank when it comes to the front."""
        while True:
            rank = self.ranks[0]
            share = self.shares.get(rank.owner)
            if share is None or share.rank is not rank:
                heappop(self.ranks)
            elif (rank.most, rank.used) == self._order(share):
                return rank.owner, share
            else:
                heapreplace(self.ranks, self._new_rank(rank.owner, share))

    def _rank(self, owner: Hashable, share: _Share[V]) -> None:
        """Gives a share that may be larger now its rank."""
        heappush(self.ranks, self._new_rank(owner, share))
        if len(self.ranks) > 2 * len(self.shares) + SPARE:
            self.ranks = [one.rank for one in self.shares.values() if one.rank is not None]
            heapify(self.ranks)

    def _new_rank(self, owner: Hashable, share: _Share[V]) -> _Rank:
        self._n_ranks += 1
        share.rank = _Rank(*self._order(share), self._n_ranks, owner)
        return share.rank

    def _order(self, share: _Share[V]) -> tuple[float, int]:
        """Rank of a share: the part that it has of what all may have, less than zero; and its last use."""
        part = len(share.entries) / self.whole.entries + share.n_bytes / self.whole.n_bytes
        return -part, share.used


def _exceeds(entries: int, n_bytes: int, most: Bound) -> bool:
    return entries > most.entries or n_bytes > most.n_bytes


class OwnedCache(Generic[V]):
    """Values by owner and key; of both, the last one used is the last to leave. No owner is kept without a value.

    Any threads may use it at once. One lock protects everything that is held; under it there are a few steps of a
    dictionary and, amortised, as many of a heap as the logarithm of the number of owners: values are made, measured
    and freed outside. A change that an error or a signal cuts short, or a fork in another thread, leaves an empty
    cache and not a wrong one. Two threads that miss a value each make it, and both get the one that was put first.
    """

    def __init__(self, size: Callable[[Hashable, V], int], own: Bound, whole: Bound, watch: int = 0) -> None:
        """`size`: bytes of a key and its value. `own`, `whole`: what one owner and what all have at most.

        watch: entries to be measured again at each use, for values that grow.
        """
        self._size, self._own, self._whole, self._watch = size, own, whole, watch
        self._lock = threading.RLock()  # finalisers that run under it may use the cache
        self.clear()
        renew_at_fork(self)

    def find(self, owner: Hashable, key: Hashable) -> V | None:
        """The value, None if there is none."""
        found = self._locked(lambda content: content.find(owner, key))
        if self._watch:
            self._measure_again()
        return found

    def put(self, owner: Hashable, key: Hashable, value: V) -> V:
        """Keeps a value, unless there is one; returns the one that is kept. Others are given up for it as needed."""
        entry = _Entry(owner, key, value, self._size(key, value))
        kept, _gone = self._locked(lambda content: content.put(entry, self._watch > 0))
        return value if kept is None else kept

    def clear(self) -> None:
        """Forgets everything. Changes that are under way in other threads end in what was forgotten."""
        self._content: _Content[V] = _Content(self._own, self._whole)

    def contents(self) -> dict[Hashable, dict[Hashable, V]]:
        """The values by owner and key, of each owner the one that was used last at the end."""
        return self._locked(
            lambda content: {
                owner: {key: entry.value for key, entry in share.entries.items() if entry.value is not None}
                for owner, share in content.shares.items()
            }
        )

    def __len__(self) -> int:
        """Number of values."""
        return self._content.n

    def renew_lock(self) -> None:
        """Replaces the lock, in a forked child; if a thread that isn't there held it, its change is half done."""
        if not self._lock.acquire(blocking=False):
            self.clear()
        self._lock = threading.RLock()

    def _measure_again(self) -> None:
        watched = self._locked(lambda content: content.next_watched(self._watch))
        sizes = [(entry, self._size(entry.key, value)) for entry, value in watched if value is not None]
        self._locked(lambda content: content.resize(sizes))  # what it gives up is freed here, outside the lock

    def _locked(self, change: Callable[[_Content[V]], T]) -> T:
        with self._lock:
            try:
                return change(self._content)
            except BaseException:
                self.clear()
                raise
