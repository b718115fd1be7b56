"""State shapes that a layer declares: what the cache keeps for each token or sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "TILE",
    "KvShape",
    "LayerShape",
    "RecurrentShape",
    "first_read",
    "largest_window",
    "panels",
    "source_positions",
]

TILE = 64  # keys that attention reads together, at absolute positions


@dataclass(frozen=True)
class KvShape:
    """Keys and values of every position, kept in blocks: elements of each head.

    window: positions that a token sees, its own among them, so that earlier blocks can be given back; 0 is no limit.
    """

    n_heads: int
    k_dim: int
    v_dim: int
    window: int = 0


@dataclass(frozen=True)
class RecurrentShape:
    """A state whose size doesn't grow with the past, kept in a slot: float32 values of one sequence."""

    n_values: int


def panels(n: int) -> int:
    """Rounded up to whole panels of 16, in which recurrent states lie."""
    return -(-n // 16) * 16


# In the order in which the layer's mixers take their slabs; () for a layer that keeps nothing.
LayerShape = tuple[KvShape | RecurrentShape, ...]


def largest_window(states: Sequence[LayerShape]) -> int:
    """Largest window of all layers that have one; 0 if none has."""
    return max((s.window for layer in states for s in layer if isinstance(s, KvShape)), default=0)


def first_read(n_tokens: int, window: int) -> int:
    """The first position that must be in the cache for the token after n_tokens, and all later ones."""
    return max(0, n_tokens + 1 - window) // TILE * TILE


def source_positions(n_source: int, block_size: int) -> int:
    """Positions that a prompt of n_source tokens takes which an encoder reads: whole blocks."""
    return -(-n_source // block_size) * block_size
