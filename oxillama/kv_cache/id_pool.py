"""Which ids are in use, and by how many, of things that are all alike. The arrays that they stand for are elsewhere."""

from collections.abc import Iterable

from oxillama.errors import ConfigError, KvCacheFullError

__all__ = ["IdPool"]


class IdPool:
    """The ids 0 … n - 1 of `noun`s, each free or in use by one or more. Not for use by two threads at once.

    users: how many use each id; to be read alone.
    """

    __slots__ = ("_free", "n", "noun", "users")

    def __init__(self, n: int, noun: str = "block") -> None:
        """Raises ConfigError for a negative number of them."""
        if n < 0:
            raise ConfigError(f"a pool must have at least 0 {noun}s, not {n}")
        self.n = n
        self.noun = noun
        # Low ids go first, and a freed one goes to the next who asks: its memory is warm.
        self._free = list(range(n - 1, -1, -1))
        self.users = [0] * n

    @property
    def n_free(self) -> int:
        """How many can be had now."""
        return len(self._free)

    def check_room(self, n: int) -> None:
        """Raises KvCacheFullError if fewer than n are free, ConfigError for a negative n."""
        if n < 0:
            raise ConfigError(f"n must be at least 0 {self.noun}s, not {n}")
        if n > len(self._free):
            raise KvCacheFullError(f"{n} {self.noun}s were asked for, {len(self._free)} of {self.n} are free")

    def alloc(self, n: int) -> list[int]:
        """Takes n free ids; if there are fewer, takes none and raises what `check_room` raises."""
        self.check_room(n)
        split = len(self._free) - n
        taken = self._free[split:]
        del self._free[split:]
        taken.reverse()
        for i in taken:
            self.users[i] = 1
        return taken

    def share(self, ids: Iterable[int]) -> None:
        """Counts one more user of each id, who is to free it too. Raises what `check_used` raises, and shares none."""
        given = list(ids)
        self.check_used(given)
        for i in given:
            self.users[i] += 1

    def n_users(self, i: int) -> int:
        """How many use an id; 0 of a free one. Raises ConfigError for an id that is not of this pool."""
        self._check_known(i)
        return self.users[i]

    def check_used(self, ids: Iterable[int]) -> None:
        """Raises ConfigError if an id is not in use, given twice or not of this pool."""
        given = list(ids)
        for i in given:
            self._check_known(i)
            if not self.users[i]:
                raise ConfigError(f"{self.noun} {i} is not in use: it was freed before")
        if len(set(given)) < len(given):
            raise ConfigError(f"a {self.noun} is given twice: {sorted(given)}")

    def free(self, ids: Iterable[int]) -> None:
        """Gives ids back, each free when its last user did so. Raises what `check_used` raises, and frees none then."""
        given = list(ids)
        self.check_used(given)
        for i in reversed(given):
            self.users[i] -= 1
            if not self.users[i]:
                self._free.append(i)

    def check_invariants(self) -> None:
        """Raises AssertionError unless each id is either in the free list once or has users. For tests: walks all."""
        free = set(self._free)
        assert len(free) == len(self._free), f"a {self.noun} is in the free list twice"
        for i, n in enumerate(self.users):
            assert (n == 0) == (i in free), f"{self.noun} {i} has {n} users, in the free list: {i in free}"

    def _check_known(self, i: int) -> None:
        if not 0 <= i < self.n:
            raise ConfigError(f"{self.noun} {i} is not of this pool, which has {self.n}, numbered from 0")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._free)} of {self.n} {self.noun}s free>"
