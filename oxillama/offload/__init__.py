"""Models larger than memory: weights that stay in their file until they are needed, with the same results."""

from oxillama.config import OffloadPolicy
from oxillama.offload.calls import PagerCounts
from oxillama.offload.pager import LayerPager
from oxillama.offload.pressure import MemoryPressureProbe, MemoryReading

__all__ = ["LayerPager", "MemoryPressureProbe", "MemoryReading", "OffloadPolicy", "PagerCounts"]
