"""Scheduling: which request computes which tokens in which blocks. Ids and counts only, no arrays and no model."""

from oxillama.scheduling.block_manager import BlockManager
from oxillama.scheduling.pools import KvCachePool, SequencePool
from oxillama.scheduling.prefix_cache import PrefixKvCache
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence, SequenceState

__all__ = ["BlockManager", "KvCachePool", "PrefixKvCache", "Scheduler", "Sequence", "SequencePool", "SequenceState"]
