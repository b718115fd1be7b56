"""Arrays behind the ids of blocks and slots: what every layer keeps of the past of all sequences."""

from __future__ import annotations

from collections.abc import Sequence

from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.kernels.attention import KvSlab, kv_bytes
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kv_cache.shapes import KvShape, LayerShape, RecurrentShape

__all__ = ["StateArrays", "block_bytes", "slot_bytes"]


def block_bytes(states: Sequence[LayerShape], block_tokens: int, kv_type: str) -> int:
    """Bytes of one block over all layers, keys and values. Raises ConfigError for what can't be stored."""
    shapes = [shape for layer in states for shape in layer if isinstance(shape, KvShape)]
    return sum(s.n_heads * sum(kv_bytes(kv_type, block_tokens, s.k_dim, s.v_dim)) for s in shapes)


def slot_bytes(states: Sequence[LayerShape]) -> int:
    """Bytes of one slot over all layers: float32, each layer's rounded up to 64."""
    shapes = [shape for layer in states for shape in layer if isinstance(shape, RecurrentShape)]
    return sum(-(-s.n_values // 16) * 64 for s in shapes)


class StateArrays:
    """The slabs of every layer, in the order of its shapes: blocks for keys and values, slots for recurrent states.

    layers: the slabs, a tuple for each layer. n_blocks, n_slots: of each slab. The operating system commits memory as
    blocks and slots are first written. Raises KvCacheFullError if not even the addresses can be had.
    """

    def __init__(
        self, states: Sequence[LayerShape], *, kv_type: str, block_tokens: int, n_blocks: int, n_slots: int
    ) -> None:
        self.states = tuple(states)
        self.n_blocks = n_blocks
        self.n_slots = n_slots
        self.kv_bytes = n_blocks * block_bytes(states, block_tokens, kv_type)
        self.recurrent_bytes = n_slots * slot_bytes(states)

        def slab(shape: KvShape | RecurrentShape) -> KvSlab | RecurrentSlab:
            if isinstance(shape, RecurrentShape):
                return RecurrentSlab(n_slots, shape.n_values)
            return KvSlab(kv_type, n_blocks, shape.n_heads, block_tokens, shape.k_dim, shape.v_dim)

        try:
            self.layers = [tuple(slab(shape) for shape in layer) for layer in self.states]
        except (MemoryError, ValueError) as e:
            if isinstance(e, ConfigError):
                raise
            raise KvCacheFullError(
                f"a KV cache of {n_blocks} blocks, {self.kv_bytes} bytes, and {n_slots} recurrent states, "
                f"{self.recurrent_bytes} bytes, can't be reserved ({e}): lower kv_budget, context_size or kv_block_size"
            ) from None

    def copy_block(self, source: int, target: int) -> None:
        """Keys and values of all layers from one block to another. Raises ConfigError for blocks that there aren't.

        Neither may be in a step that is being computed: call it between two.
        """
        for block in (source, target):
            if not 0 <= block < self.n_blocks:
                raise ConfigError(f"KV block {block} is none of the model's {self.n_blocks}, numbered from 0")
        for layer in self.layers:
            for slab in layer:
                if isinstance(slab, KvSlab):
                    slab.k[target] = slab.k[source]
                    slab.v[target] = slab.v[source]
