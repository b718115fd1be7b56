"""Pools of reference-counted ids: KV blocks and recurrent-state slots."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable

from oxillama.errors import ConfigError, KvCacheFullError

__all__ = ["MAX_CHECKPOINTS", "RUNNING_SLOTS", "KvCachePool", "RefCountedPool", "SequencePool", "StateSlots"]


class RefCountedPool:
    """The ids 0 … n - 1 of `noun`s, each free or in use by one or more. Not for use by two threads at once.

    The prefix cache may be one of the users. An id that it alone uses is idle: still found by look-ups, and evicted
    when room is needed.

    users: reference count of each id; read-only.
    """

    __slots__ = ("_free", "_idle", "_kept", "n", "noun", "users")

    def __init__(self, n: int, noun: str = "block") -> None:
        """Raises ConfigError for a negative number of them."""
        if n < 0:
            raise ConfigError(f"a pool must have at least 0 {noun}s, not {n}")
        self.n = n
        self.noun = noun
        # Low ids go first, and a freed one is allocated next: its memory is warm.
        self._free = list(range(n - 1, -1, -1))
        self.users = [0] * n
        self._kept: dict[int, object] = {}  # pinned ids, with the prefix-cache node of each
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def n_free(self) -> int:
        """Ids that are free now."""
        return len(self._free)

    @property
    def free_ids(self) -> list[int]:
        """Ids without users, in any order."""
        return list(self._free)

    @property
    def n_idle(self) -> int:
        """Ids that the prefix cache alone uses."""
        return len(self._idle)

    @property
    def n_kept(self) -> int:
        """Ids that the prefix cache uses, alone or with sequences."""
        return len(self._kept)

    @property
    def n_available(self) -> int:
        """Free and idle ids: what an allocation can get at most."""
        return len(self._free) + len(self._idle)

    def check_room(self, n: int) -> None:
        """Raises KvCacheFullError if fewer than n are free, ConfigError for a negative n."""
        if n < 0:
            raise ConfigError(f"n must be at least 0 {self.noun}s, not {n}")
        if n > len(self._free):
            raise KvCacheFullError(f"{n} {self.noun}s were asked for, {len(self._free)} of {self.n} are free")

    def alloc(self, n: int) -> list[int]:
        """Takes n free ids; if there are fewer, takes none and raises what `check_room` raises."""
        split = len(self._free) - n
        if not 0 <= n <= len(self._free):
            self.check_room(n)
        taken = self._free[split:]
        del self._free[split:]
        taken.reverse()
        for i in taken:
            self.users[i] = 1
        return taken

    def take(self) -> int:
        """`alloc` of one of the free ids, which there must be."""
        i = self._free.pop()
        self.users[i] = 1
        return i

    def exchange(self, mine: int, other: int) -> None:
        """Drops a reference to one id in use and adds one to another."""
        self.users[other] += 1
        self._idle.pop(other, None)
        self._decref(mine)

    def share(self, ids: Iterable[int]) -> None:
        """Adds a reference to each id, to be freed too. Raises what `check_used` raises, and shares none."""
        given = list(ids)
        self.check_used(given)
        for i in given:
            self.users[i] += 1
            self._idle.pop(i, None)

    def n_users(self, i: int) -> int:
        """Reference count of an id; 0 if it is free. Raises ConfigError for an id that is not of this pool."""
        self._check_known(i)
        return self.users[i]

    def check_used(self, ids: Iterable[int]) -> None:
        """Raises ConfigError if an id is not in use, given twice or not of this pool."""
        given = list(ids)
        for i in given:
            if not 0 <= i < self.n:
                self._check_known(i)
            if not self.users[i]:
                raise ConfigError(f"{self.noun} {i} is not in use: it was freed before")
        if len(set(given)) < len(given):
            raise ConfigError(f"a {self.noun} is given twice: {sorted(given)}")

    def free(self, ids: Iterable[int], *, stale: bool = False) -> None:
        """Drops a reference to each id; it is free with the last one. Raises what `check_used` raises, and frees none
        then.

        stale: ids that become idle by this are the first to be evicted.
        """
        given = list(ids)
        self.check_used(given)
        for i in reversed(given):
            self._decref(i)
            if stale and i in self._idle:
                self._idle.move_to_end(i, last=False)

    def _decref(self, i: int) -> None:
        self.users[i] -= 1
        if not self.users[i]:
            self._free.append(i)
        elif self.users[i] == 1 and i in self._kept:
            self._idle[i] = None

    def reset(self, held: Iterable[int] = ()) -> None:
        """Frees all ids but those that are held: each is used as often as it is given. The cache keeps none."""
        users = [0] * self.n
        for i in held:
            users[i] += 1
        self._free = [i for i in range(self.n - 1, -1, -1) if not users[i]]
        self.users, self._kept, self._idle = users, {}, OrderedDict()

    def pin(self, i: int, owner_key: object) -> None:
        """Adds the prefix cache as a user of an id in use; `owner_key` gives its node again."""
        self.users[i] += 1
        self._kept[i] = owner_key

    def unpin(self, i: int) -> None:
        """Drops the prefix cache's reference."""
        del self._kept[i]
        self._idle.pop(i, None)
        self._decref(i)

    def owner_key(self, i: int) -> object | None:
        """The prefix-cache node of an id; None if the cache doesn't use it."""
        return self._kept.get(i)

    def lru(self) -> object:
        """The prefix-cache node of the least recently used idle id; there must be one."""
        return self._kept[next(iter(self._idle))]

    def check_invariants(self) -> None:
        """Raises AssertionError unless each id is either in the free list once or has users. For tests: walks all."""
        free = set(self._free)
        assert len(free) == len(self._free), f"a {self.noun} is in the free list twice"
        for i, n in enumerate(self.users):
            assert (n == 0) == (i in free), f"{self.noun} {i} has {n} users, in the free list: {i in free}"
        idle = {i for i in self._kept if self.users[i] == 1}
        assert idle == set(self._idle), f"idle {self.noun}s are {sorted(idle)}, not {sorted(self._idle)}"

    def _check_known(self, i: int) -> None:
        if not 0 <= i < self.n:
            raise ConfigError(f"{self.noun} {i} is not of this pool, which has {self.n}, numbered from 0")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._free)} of {self.n} {self.noun}s free>"


class KvCachePool(RefCountedPool):
    """Ids of KV blocks, each with a count of its users: sequences, and the prefix cache.

    A table is the list of a sequence's blocks in the order of positions. A block may be written only by its single
    user: `own` replaces shared blocks, and says which are to be copied.
    """

    __slots__ = ()

    def __init__(self, n_blocks: int, noun: str = "KV block") -> None:
        """Raises ConfigError for a negative number."""
        super().__init__(n_blocks, noun)

    def fork(self, table: Iterable[int]) -> list[int]:
        """A second table of the same blocks, none of them copied; to be freed like the first.

        Entries of freed blocks (-1) stay so. Raises ConfigError, and shares none, for a block that is not in use, given
        twice or not of this pool.
        """
        forked = list(table)
        self.share(block for block in forked if block != -1)
        return forked

    def n_shared(self, table: list[int], first: int, last: int) -> int:
        """Number of blocks in table[first:last] with other users: the free blocks that `own` needs."""
        n, users = 0, self.users
        for block in table[first:last]:
            n += users[block] > 1
        return n

    def own(self, table: list[int], first: int, last: int) -> list[tuple[int, int]]:
        """Puts free blocks in the place of those in table[first:last] that have other users: (old, new) of each.

        The contents of the old ones must be copied before anything is written to any block. Raises KvCacheFullError,
        and changes nothing, if there are too few free blocks.
        """
        self.check_room(self.n_shared(table, first, last))
        replaced = []
        for i in range(first, min(last, len(table))):
            old = table[i]
            if self.users[old] > 1:
                table[i] = self.alloc(1)[0]
                self._decref(old)
                replaced.append((old, table[i]))
        return replaced


class SequencePool:
    """Ids of KV blocks and of recurrent slots, each free or in use. Not for use by two threads at once.

    blocks: each holds keys and values of some tokens, of all attention layers but those of the next kind. windowed: the
    same of layers that see no more than `window` tokens. slots: each holds the state of one sequence, of all recurrent
    layers. A model without layers of one kind has none of those.
    """

    __slots__ = ("blocks", "n_blocks", "n_slots", "slots", "window", "windowed")

    def __init__(self, n_blocks: int, n_slots: int = 0, n_windowed: int = 0, window: int = 0) -> None:
        """Raises ConfigError for negative numbers, and unless there is a window just where there are blocks for it."""
        if window < 0 or (window > 0) != (n_windowed > 0):
            raise ConfigError(f"a window of {window} tokens with {n_windowed} KV blocks: give both, or neither")
        self.blocks = KvCachePool(n_blocks)
        self.windowed = KvCachePool(n_windowed, "windowed KV block")
        self.window = window
        self.slots = RefCountedPool(n_slots, "recurrent slot")
        self.n_blocks, self.n_slots = n_blocks, n_slots

    def acquire(self, n_blocks: int = 0, n_slots: int = 0) -> tuple[list[int], list[int]]:
        """Takes free blocks and slots: their ids.

        Raises KvCacheFullError if there are fewer of either, and takes none; ConfigError for negative numbers.
        """
        self.blocks.check_room(n_blocks)
        self.slots.check_room(n_slots)
        return self.blocks.alloc(n_blocks), self.slots.alloc(n_slots)

    def release(self, blocks: Iterable[int] = (), slots: Iterable[int] = ()) -> None:
        """Gives blocks and slots back.

        Raises ConfigError for an id that is not in use, given twice or not of this pool, and then frees none.
        """
        blocks, slots = list(blocks), list(slots)
        self.blocks.check_used(blocks)
        self.slots.check_used(slots)
        self.blocks.free(blocks)
        self.slots.free(slots)

    def __repr__(self) -> str:
        pools = [self.blocks, self.windowed, self.slots] if self.window else [self.blocks, self.slots]
        free = (f"{pool.n_free} of {pool.n} {pool.noun}s" for pool in pools)
        return f"<SequencePool {', '.join(free)} free>"


MAX_CHECKPOINTS = 3  # of a sequence
RUNNING_SLOTS = 2  # that a sequence needs to compute: a step reads one and writes the other


class StateSlots:
    """Slots that a sequence has a reference to, one of each. Those in `spare` are its own.

    current: of the state after all that is computed; -1 if nothing is. spare: to be written, the last one next.
    checkpoints: (tokens computed, slot), fewest tokens first; the newest may be `current` itself. They are at any
    number of tokens and for this sequence alone, to go back to; those that others may begin with are at the ends of
    blocks, and the prefix cache has them. mark: number of tokens at which the scheduler is to end a step, for a
    checkpoint there; 0 is none. shared_marks: the same for checkpoints of the prefix cache.
    """

    __slots__ = ("checkpoints", "current", "mark", "shared_marks", "spare")

    def __init__(self) -> None:
        self.current = -1
        self.spare: list[int] = []
        self.checkpoints: list[tuple[int, int]] = []
        self.mark = 0
        self.shared_marks: list[int] = []

    def n_missing(self, pool: RefCountedPool) -> int:
        """Slots to be added to `spare` before the sequence may run.

        A shared slot can't be written after the next step, and doesn't count: a running sequence has all the slots
        that it will ever need, and no other sequence can take them away.
        """
        return RUNNING_SLOTS - (self.current >= 0 and pool.users[self.current] == 1) - len(self.spare)

    def span(self) -> tuple[int, int]:
        """(slot to read, slot to write) of the next step."""
        return self.current, self.spare[-1]

    @property
    def needs_another(self) -> bool:
        """Whether `commit` will take a free slot, or else a checkpoint's."""
        return len(self.spare) == 1 and any(slot == self.current for _, slot in self.checkpoints)

    def commit(self, pool: RefCountedPool) -> None:
        """The next step's state was written: it is the current one."""
        before, self.current = self.current, self.spare.pop()
        if before >= 0 and all(slot != before for _, slot in self.checkpoints):
            if pool.users[before] == 1:
                self.spare.append(before)
            else:
                pool.free([before])
        while not self.spare:
            if not pool.n_free:
                pool.free(self.drop_checkpoint())
            if pool.n_free:
                self.spare += pool.alloc(1)

    def until_mark(self, n_computed: int, n: int) -> int:
        """n, or as many tokens less as the next step has to end before that."""
        ahead = [mark - n_computed for mark in (self.mark, *self.shared_marks) if mark > n_computed]
        return min(n, *ahead) if ahead else n

    def checkpoint(self, n_tokens: int) -> list[int]:
        """Keeps the current state, which is that after n_tokens > 0; slots that are not needed any more.

        Of more than MAX_CHECKPOINTS, the one goes that costs least: distances between checkpoints grow with the
        distance from the end, so that going back n tokens computes about as many again. Position 0 is a checkpoint for
        free.
        """
        kept = self.checkpoints
        if kept and kept[-1][1] == self.current:
            return []
        kept.append((n_tokens, self.current))
        if len(kept) <= MAX_CHECKPOINTS:
            return []
        at = [0, *(n for n, _ in kept)]
        gaps = [(at[i + 1] - at[i - 1]) / (at[-1] + 1 - at[i]) for i in range(1, len(kept))]
        return [kept.pop(gaps.index(min(gaps)))[1]]

    def rewind(self, n_computed: int, n_tokens: int) -> tuple[int, list[int]]:
        """Back from n_computed tokens to at most n_tokens: (how many are computed now, slots that are free by that)."""
        if n_computed <= n_tokens:
            return n_computed, []
        split = bisect_right(self.checkpoints, n_tokens, key=lambda kept: kept[0])
        freed = {self.current, *(slot for _, slot in self.checkpoints[split:])} - {-1}
        del self.checkpoints[split:]
        n_computed, self.current = self.checkpoints[-1] if self.checkpoints else (0, -1)
        return n_computed, sorted(freed)

    def drop_spare(self) -> list[int]:
        """Gives up the slots that only a running sequence needs."""
        freed, self.spare, self.mark, self.shared_marks = self.spare, [], 0, []
        return freed

    def drop_checkpoint(self) -> list[int]:
        """Gives up the oldest checkpoint: its slot, unless that holds the current state as well."""
        _, slot = self.checkpoints.pop(0)
        return [slot] if slot != self.current else []
