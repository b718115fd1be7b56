"""What layers keep of the past: which blocks and slots are in use, by id, and the arrays that the ids stand for."""

from oxillama.kv_cache.block_pool import KvCachePool
from oxillama.kv_cache.prefix import PrefixKvCache
from oxillama.kv_cache.sequence_pool import SequencePool

__all__ = ["KvCachePool", "PrefixKvCache", "SequencePool"]
