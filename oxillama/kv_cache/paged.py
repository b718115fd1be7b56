"""Arrays behind the block pool: keys and values of every layer, in blocks that any sequence may own."""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.errors import KvCacheFullError
from oxillama.kernels.attention import KvSlab, kv_bytes


@dataclass(frozen=True)
class KvShape:
    """What one block of one layer holds."""

    n_layers: int
    n_heads: int
    head_dim: int
    block_tokens: int
    kv_type: str
    v_head_dim: int | None = None  # where it is not head_dim

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        v_dim = self.head_dim if self.v_head_dim is None else self.v_head_dim
        return self.n_layers * self.n_heads * sum(kv_bytes(self.kv_type, self.block_tokens, self.head_dim, v_dim))


class PagedKvCache:
    """One :class:`KvSlab` per layer. The operating system commits memory as blocks are first written.

    Raises KvCacheFullError if not even the addresses can be had.
    """

    def __init__(self, shape: KvShape, n_blocks: int) -> None:
        self.shape = shape
        self.n_blocks = n_blocks
        layer = (shape.kv_type, n_blocks, shape.n_heads, shape.block_tokens, shape.head_dim, shape.v_head_dim)
        try:
            self.slabs = [KvSlab(*layer) for _ in range(shape.n_layers)]
        except (MemoryError, ValueError) as e:
            raise KvCacheFullError(
                f"a KV cache of {n_blocks} blocks, {self.memory_bytes} bytes, can't be reserved ({e}): "
                "lower kv_budget, context_size or kv_block_size"
            ) from None

    @property
    def memory_bytes(self) -> int:
        """Bytes reserved for all blocks."""
        return self.n_blocks * self.shape.block_bytes
