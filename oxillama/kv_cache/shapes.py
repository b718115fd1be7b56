"""What the layers of a model keep of the past of each sequence: sizes alone, known before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KvShape", "LayerShape", "RecurrentShape"]


@dataclass(frozen=True)
class KvShape:
    """Keys and values of every position, kept in blocks: elements of each head."""

    n_heads: int
    k_dim: int
    v_dim: int


@dataclass(frozen=True)
class RecurrentShape:
    """A state whose size doesn't grow with the past, kept in a slot: float32 values of one sequence."""

    n_values: int


# In the order in which the layer's mixers take their slabs; () for a layer that keeps nothing.
LayerShape = tuple[KvShape | RecurrentShape, ...]
