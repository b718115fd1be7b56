"""Page requests of products to the reader, and its counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from oxillama.errors import OxiLlamaError
from oxillama.gguf.source import FileSource

__all__ = ["Page", "PageRequest", "PagerCounts"]


@dataclass(frozen=True, slots=True)
class Page:
    """Location of a page: file, offset and length."""

    source: FileSource
    offset: int
    nbytes: int
    is_expert: bool


@dataclass(slots=True)
class PagerCounts:
    """Counters since the model was loaded.

    hits: pages in memory when a product requested them. faults: pages that were not. bytes: read from files, ahead or
    not. direct_bytes: the part of them read past the system's page cache. stalls, stall_seconds: number and total time
    of products' waits.
    """

    hits: int = 0
    faults: int = 0
    bytes: int = 0
    direct_bytes: int = 0
    stalls: int = 0
    stall_seconds: float = 0.0


@dataclass(eq=False, slots=True)
class PageRequest:
    """Pages that one product requested. n_open: number of pages left to be taken.

    ready: pages held for it. cached: pages in the system's page cache, which the product reads, some into slots.
    taken, tried: the ready and the cached pages that the product has now. Other pages are being read.
    """

    n_open: int
    ready: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    error: OxiLlamaError | None = None
