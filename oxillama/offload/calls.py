"""What products ask of a reader, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from oxillama.errors import OxiLlamaError
from oxillama.gguf.source import FileSource

__all__ = ["Call", "Page", "PagerCounts"]


@dataclass(frozen=True, slots=True)
class Page:
    """Where a page's bytes are in which file."""

    source: FileSource
    offset: int
    nbytes: int
    is_expert: bool


@dataclass(slots=True)
class PagerCounts:
    """Since the model was loaded.

    hits: pages that were in memory when a product asked for them. faults: those that were not. bytes: read from files,
    ahead or not. direct_bytes: those of them that were read past the system's page cache. stalls, stall_seconds: how
    often and how long products waited.
    """

    hits: int = 0
    faults: int = 0
    bytes: int = 0
    direct_bytes: int = 0
    stalls: int = 0
    stall_seconds: float = 0.0


@dataclass(eq=False, slots=True)
class Call:
    """Pages that one product asked for. n_open: left to be taken.

    ready: held for it. at_hand: in the system's memory, and in the slots of `filled` if they get one; taken, tried: of
    each kind, those that it has now. Others are on their way.
    """

    n_open: int
    ready: list[int] = field(default_factory=list)
    at_hand: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    error: OxiLlamaError | None = None
