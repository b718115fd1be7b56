"""Blocks of keys and values, by id: who has which, and who must copy one before writing to it."""

from collections.abc import Iterable

from oxillama.kv_cache.id_pool import IdPool

__all__ = ["KvCachePool"]


class KvCachePool(IdPool):
    """Ids of KV blocks, each with a count of its users: sequences, and the prefix cache.

    A table is the list of a sequence's blocks in the order of positions. Who writes to a block must be its only user:
    `own` sees to that, and says what is to be copied.
    """

    __slots__ = ()

    def __init__(self, n_blocks: int, noun: str = "KV block") -> None:
        """Raises ConfigError for a negative number."""
        super().__init__(n_blocks, noun)

    def fork(self, table: Iterable[int]) -> list[int]:
        """A second table of the same blocks, none of them copied; to be freed like the first.

        Places of blocks that were given back (-1) stay so. Raises ConfigError, and shares none, for a block that is not
        in use, given twice or not of this pool.
        """
        forked = list(table)
        self.share(block for block in forked if block != -1)
        return forked

    def n_shared(self, table: list[int], first: int, last: int) -> int:
        """How many of table[first:last] have other users too: free blocks that `own` needs."""
        return sum(self.users[block] > 1 for block in table[first:last])

    def own(self, table: list[int], first: int, last: int) -> list[tuple[int, int]]:
        """Puts free blocks in the place of those in table[first:last] that have other users: (old, new) of each.

        What is to stay of the old ones must be copied before anything is written to any block. Raises KvCacheFullError,
        and changes nothing, if there are too few free blocks.
        """
        self.check_room(self.n_shared(table, first, last))
        replaced = []
        for i in range(first, min(last, len(table))):
            old = table[i]
            if self.users[old] > 1:
                table[i] = self.alloc(1)[0]
                self._less(old)
                replaced.append((old, table[i]))
        return replaced
