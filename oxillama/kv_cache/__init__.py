"""What layers keep of the past: which blocks and slots are in use, by id, and the arrays that the ids stand for."""

from oxillama.scheduling.pools import KvCachePool, SequencePool
from oxillama.scheduling.prefix_cache import PrefixKvCache

__all__ = ["KvCachePool", "PrefixKvCache", "SequencePool"]
