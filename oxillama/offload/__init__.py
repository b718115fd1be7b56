"""Models larger than memory: weights that stay in their file until they are needed, with the same results."""

from oxillama.offload.calls import PagerCounts
from oxillama.offload.pager import LayerPager
from oxillama.offload.pressure import MemoryPressureProbe, MemoryReading
from oxillama.offload_policy import OffloadPolicy

__all__ = ["LayerPager", "MemoryPressureProbe", "MemoryReading", "OffloadPolicy", "PagerCounts"]
