"""Which KV blocks are in use: ids only. The arrays that the ids stand for are elsewhere."""

from collections.abc import Iterable

from oxillama.errors import ConfigError, KvCacheFullError

__all__ = ["BlockPool"]


class BlockPool:
    """The block ids 0 … n_blocks - 1, each free or in use. Not for use by two threads at once."""

    __slots__ = ("_free", "_used", "n_blocks")

    def __init__(self, n_blocks: int) -> None:
        """Raises ConfigError for less than one block."""
        if n_blocks < 1:
            raise ConfigError(f"n_blocks must be at least 1, not {n_blocks}")
        self.n_blocks = n_blocks
        # Low ids go first, and a freed block goes to the next who asks: its memory is warm.
        self._free = list(range(n_blocks - 1, -1, -1))
        self._used = bytearray(n_blocks)

    @property
    def n_free(self) -> int:
        """Blocks that can be had now."""
        return len(self._free)

    def alloc(self, n: int) -> list[int]:
        """Takes n free blocks.

        Raises KvCacheFullError if there are fewer, and takes none; ConfigError for a negative n.
        """
        if n < 0:
            raise ConfigError(f"n must be at least 0 blocks, not {n}")
        if n > len(self._free):
            raise KvCacheFullError(f"{n} KV blocks were asked for, {len(self._free)} of {self.n_blocks} are free")
        split = len(self._free) - n
        taken = self._free[split:]
        del self._free[split:]
        taken.reverse()
        for block in taken:
            self._used[block] = 1
        return taken

    def free(self, blocks: Iterable[int]) -> None:
        """Gives blocks back. Raises ConfigError if one is not in use or not of this pool, and then frees none."""
        given = list(blocks)
        for block in given:
            if not 0 <= block < self.n_blocks:
                raise ConfigError(f"block {block} is not of this pool, whose blocks are 0 to {self.n_blocks - 1}")
            if not self._used[block]:
                raise ConfigError(f"block {block} is not in use: it was freed before")
        if len(set(given)) < len(given):
            raise ConfigError(f"a block is given twice: {sorted(given)}")
        for block in given:
            self._used[block] = 0
        given.reverse()
        self._free.extend(given)

    def __repr__(self) -> str:
        return f"<BlockPool {len(self._free)} of {self.n_blocks} blocks free>"
