"""What sequences need to live: KV blocks, and slots of recurrent states."""

from collections.abc import Iterable

from oxillama.errors import ConfigError
from oxillama.kv_cache.block_pool import KvCachePool
from oxillama.kv_cache.id_pool import IdPool

__all__ = ["SequencePool"]


class SequencePool:
    """Ids of KV blocks and of recurrent slots, each free or in use. Not for use by two threads at once.

    blocks: each holds keys and values of some tokens, of all attention layers but those of the next kind. windowed: the
    same of layers that see no more than `window` tokens. slots: each holds the state of one sequence, of all recurrent
    layers. A model without layers of one kind has none of those.
    """

    __slots__ = ("blocks", "slots", "window", "windowed")

    def __init__(self, n_blocks: int, n_slots: int = 0, n_windowed: int = 0, window: int = 0) -> None:
        """Raises ConfigError for negative numbers, and unless there is a window just where there are blocks for it."""
        if window < 0 or (window > 0) != (n_windowed > 0):
            raise ConfigError(f"a window of {window} tokens with {n_windowed} KV blocks: give both, or neither")
        self.blocks = KvCachePool(n_blocks)
        self.windowed = KvCachePool(n_windowed, "windowed KV block")
        self.window = window
        self.slots = IdPool(n_slots, "recurrent slot")

    @property
    def n_blocks(self) -> int:
        return self.blocks.n

    @property
    def n_slots(self) -> int:
        return self.slots.n

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
