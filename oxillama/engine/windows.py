"""How many blocks the layers with a window need: counts only."""

from oxillama.kv_cache.shapes import TILE, first_read

__all__ = ["Windows", "n_alive"]


def n_alive(window: int, block_size: int, n: int) -> int:
    """Blocks that a sequence needs at most to compute n tokens in a step, wherever they are."""
    return -(-(window + n - 1 + max(TILE, block_size) - 1) // block_size)


class Windows:
    """What n_blocks blocks of windows are enough for.

    max_chunk: tokens that a step may compute, of a sequence that is longer than all blocks together.
    """

    def __init__(self, n_blocks: int, window: int, block_size: int, max_chunk: int) -> None:
        """max_chunk: of a step of this scheduler."""
        self.window = window
        self.block_size = block_size
        self.n_blocks = n_blocks
        self.max_chunk = max(1, min(max_chunk, n_blocks * block_size - window - max(TILE, block_size) + 2))
        self._n_ahead = min(n_blocks, n_alive(window, block_size, max_chunk))

    def reach(self, n_computed: int) -> int:
        """Blocks from the beginning on, given back or not, up to which a sequence may have them."""
        return self.first(n_computed) + self._n_ahead

    def first(self, n_computed: int) -> int:
        """The first block that is still read after n_computed tokens."""
        return first_read(n_computed, self.window) // self.block_size

    def n_needed(self, n_tokens: int) -> int:
        """Blocks without which a sequence of n_tokens can't run."""
        return min(-(-n_tokens // self.block_size), max(self.n_blocks, n_alive(self.window, self.block_size, 1)))

    def chunk(self, n: int, n_reserve: int) -> int:
        """n tokens, or less: what a step of a sequence computes that can come to have n_reserve."""
        return n if n_reserve <= self.n_blocks * self.block_size else min(n, self.max_chunk)
