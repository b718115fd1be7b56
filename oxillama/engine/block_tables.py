"""Tables of KV blocks as sequences grow: ids and counts only."""

import sys

from oxillama.engine.sequence import Sequence
from oxillama.engine.windows import Windows
from oxillama.kv_cache.block_pool import KvCachePool
from oxillama.kv_cache.prefix import BLOCK, WINDOWED, PrefixKvCache
from oxillama.kv_cache.sequence_pool import SequencePool

__all__ = ["BlockTables"]


class BlockTables:
    """Gives blocks to sequences as they grow, and takes those back that no window reaches any more.

    groups: (kind, pool) of the blocks that there are; a sequence has a table of each kind.
    copies: (kind, source, target) of blocks, to be copied in this order before the next step computes anything.
    held: lists of (pool, ids of blocks) that are used by no sequence, as while they are saved.
    prefix: None if no beginnings are shared.
    """

    def __init__(
        self, pool: SequencePool, block_size: int, max_chunk: int, prefix: PrefixKvCache | None = None
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.groups = [(kind, p) for kind, p in ((BLOCK, pool.blocks), (WINDOWED, pool.windowed)) if p.n]
        self.windows = Windows(pool.windowed.n, pool.window, block_size, max_chunk) if pool.window else None
        self.prefix = prefix
        self.copies: list[tuple[int, int, int]] = []
        self.held: list[list[tuple[KvCachePool, list[int]]]] = []

    def n_blocks(self, n_tokens: int) -> int:
        """Blocks that hold n_tokens."""
        return -(-n_tokens // self.block_size) if self.groups else 0

    @property
    def room(self) -> tuple[int, ...]:
        """Of each kind, what can be had without taking anything from a sequence."""
        return self.pool.blocks.n_available, self.pool.windowed.n_available, self.pool.slots.n_available

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence that could run, were it alone; without a limit, more than any context."""
        limits = [pool.n * self.block_size for kind, pool in self.groups if kind != WINDOWED]
        if self.windows and self.windows.n_needed(sys.maxsize) > self.pool.windowed.n:
            limits.append(self.pool.windowed.n * self.block_size)
        return min(limits, default=sys.maxsize)

    def length(self, kind: int, n_computed: int, n_tokens: int) -> int:
        """Blocks in a table, given back or not, to compute tokens from n_computed up to the first n_tokens.

        Of windows, no more than those that can be alive at once: it gets more as it gives others back.
        """
        n = self.n_blocks(n_tokens)
        return min(n, self.windows.reach(n_computed)) if kind == WINDOWED and self.windows else n

    def missing(self, sequence: Sequence, n_tokens: int) -> list[int]:
        """Blocks of each group that a sequence needs to compute its tokens up to the first n_tokens."""
        first, found = sequence.n_computed // self.block_size, []
        for kind, pool in self.groups:
            table, n = sequence.tables[kind], self.length(kind, sequence.n_computed, n_tokens)
            found.append(max(0, n - len(table)) + pool.n_shared(table, first, n))
        return found

    def fits(self, missing: list[int], reserve: int = 0) -> bool:
        """Whether so many blocks of each group can be had, and `reserve` more."""
        return all(n + reserve <= pool.n_available for n, (_, pool) in zip(missing, self.groups, strict=True))

    def has_room(self, sequence: Sequence) -> bool:
        """`not any(missing)` for the next token alone: what is asked of each in every step, and mostly so."""
        i = sequence.n_computed // self.block_size
        for kind, pool in self.groups:
            table = sequence.tables[kind]
            if i >= len(table) or pool.users[table[i]] != 1:
                return False
        return True

    def grow(self, sequence: Sequence, n_tokens: int) -> bool:
        """Gives a sequence what it needs to compute its tokens up to the first n_tokens; False if that can't be had.

        Blocks that it is to write to become its own: what others have of them is copied.
        """
        missing = self.missing(sequence, n_tokens)
        if not self.fits(missing):
            return False
        first, filled = divmod(sequence.n_computed, self.block_size)
        for n_missing, (kind, pool) in zip(missing, self.groups, strict=True):
            if not n_missing:
                continue
            if self.prefix:
                self.prefix.evict(kind, n_missing - pool.n_free)
            table, n = sequence.tables[kind], self.length(kind, sequence.n_computed, n_tokens)
            partial = bool(filled) and pool.n_shared(table, first, first + 1)
            replaced = pool.own(table, first, n)
            self.copies += [(kind, *replaced[0])] if partial else []
            table += pool.alloc(max(0, n - len(table)))
        return True

    def trim(self, sequence: Sequence, n_tokens: int) -> None:
        """Gives back the blocks after those that hold the first n_tokens, of which as many are computed."""
        n = self.n_blocks(n_tokens)
        for kind, pool in self.groups:
            pool.free(sequence.tables[kind][n:])
            del sequence.tables[kind][n:]

    def give_back(self, sequence: Sequence) -> None:
        """Takes the blocks that nothing reads any more after what a sequence has computed.

        The prefix cache keeps them no longer than the next one who needs room: what it can begin with is at the end.
        """
        if self.windows is None or (n := self.windows.first(sequence.n_computed)) <= sequence.n_gone:
            return
        table, before = sequence.tables[WINDOWED], sequence.n_gone
        self.pool.windowed.free(table[before:n], stale=True)
        table[before:n] = [-1] * (n - before)
        sequence.n_gone = n
