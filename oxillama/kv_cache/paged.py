"""Arrays behind the block pool: keys and values of every layer, in blocks that any sequence may own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.errors import KvCacheFullError
from oxillama.kernels.attention import KvSlab

KV_TYPES = {"f32": np.float32, "f16": np.float16}


@dataclass(frozen=True)
class KvShape:
    """What one block of one layer holds."""

    n_layers: int
    n_heads: int
    head_dim: int
    block_tokens: int
    kv_type: str

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        padded = -(-self.head_dim // 16) * 16
        width = self.head_dim + padded
        return self.n_layers * self.n_heads * self.block_tokens * width * np.dtype(KV_TYPES[self.kv_type]).itemsize


class PagedKvCache:
    """One :class:`KvSlab` per layer. The operating system commits memory as blocks are first written.

    Raises KvCacheFullError if not even the addresses can be had.
    """

    def __init__(self, shape: KvShape, n_blocks: int) -> None:
        dtype, dim, padded = KV_TYPES[shape.kv_type], shape.head_dim, -(-shape.head_dim // 16) * 16
        k_shape = (n_blocks, shape.n_heads, shape.block_tokens // 16, dim, 16)
        v_shape = (n_blocks, shape.n_heads, shape.block_tokens, padded)
        self.shape = shape
        self.n_blocks = n_blocks
        try:
            self.slabs = [KvSlab(np.zeros(k_shape, dtype), np.zeros(v_shape, dtype)) for _ in range(shape.n_layers)]
        except (MemoryError, ValueError) as e:
            raise KvCacheFullError(
                f"a KV cache of {n_blocks} blocks, {self.memory_bytes} bytes, can't be reserved ({e}): "
                "lower kv_budget, context_size or kv_block_size"
            ) from None

    @property
    def memory_bytes(self) -> int:
        """Bytes reserved for all blocks."""
        return self.n_blocks * self.shape.block_bytes
