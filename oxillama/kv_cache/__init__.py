"""Keys and values of the past: which blocks are in use, by id, and the arrays that the ids stand for."""

from oxillama.kv_cache.block_pool import BlockPool

__all__ = ["BlockPool"]
