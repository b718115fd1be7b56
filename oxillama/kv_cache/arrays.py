"""Arrays of KV blocks and state slots: every layer's keys, values and recurrent states of all sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.kernels.attention import KvSlab, kv_bytes
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kv_cache.pages import begin_small, release_rows
from oxillama.layer_state import KvShape, LayerShape, RecurrentShape

__all__ = ["StateArrays", "block_bytes", "slot_bytes"]


def block_bytes(states: Sequence[LayerShape], block_tokens: int, kv_type: str, *, windowed: bool | None = None) -> int:
    """Bytes of one block over all layers, keys and values. Raises ConfigError for shapes that can't be stored.

    windowed: only the layers with a sliding window, or only the others.
    """
    shapes = [shape for layer in states for shape in layer if isinstance(shape, KvShape)]
    shapes = [shape for shape in shapes if windowed is None or windowed == (shape.window > 0)]
    return sum(s.n_heads * sum(kv_bytes(kv_type, block_tokens, s.k_dim, s.v_dim)) for s in shapes)


def slot_bytes(states: Sequence[LayerShape]) -> int:
    """Bytes of one slot over all layers: float32, each layer's rounded up to 64."""
    shapes = [shape for layer in states for shape in layer if isinstance(shape, RecurrentShape)]
    return sum(-(-s.n_values // 16) * 64 for s in shapes)


class StateArrays:
    """The slabs of every layer, in the order of its shapes: blocks for keys and values, slots for recurrent states.

    layers: the slabs, a tuple for each layer. n_blocks, n_slots: of each slab. n_windowed: blocks of the slabs of
    layers with a window; 0: those have n_blocks too, with the same ids. id_bytes: bytes of a block, a windowed block
    and a slot over all layers. The operating system commits memory as blocks and slots are first written. Raises
    KvCacheFullError if not even the addresses can be reserved.
    """

    def __init__(
        self,
        states: Sequence[LayerShape],
        *,
        kv_type: str,
        block_tokens: int,
        n_blocks: int,
        n_slots: int,
        n_windowed: int = 0,
    ) -> None:
        self.states = tuple(states)
        self.n_blocks = n_blocks
        self.n_slots = n_slots
        self.n_windowed = n_windowed
        self.id_bytes = (
            block_bytes(states, block_tokens, kv_type, windowed=False if n_windowed else None),
            block_bytes(states, block_tokens, kv_type, windowed=True) if n_windowed else 0,
            slot_bytes(states),
        )
        self.kv_bytes = n_blocks * self.id_bytes[0] + n_windowed * self.id_bytes[1]
        self.recurrent_bytes = n_slots * self.id_bytes[2]

        def slab(shape: KvShape | RecurrentShape) -> KvSlab | RecurrentSlab:
            if isinstance(shape, RecurrentShape):
                return RecurrentSlab(n_slots, shape.n_values)
            windowed = bool(shape.window and n_windowed)
            n = n_windowed if windowed else n_blocks
            made = KvSlab(kv_type, n, shape.n_heads, block_tokens, shape.k_dim, shape.v_dim, windowed)
            begin_small(made.k)
            begin_small(made.v)
            return made

        try:
            self.layers = [tuple(slab(shape) for shape in layer) for layer in self.states]
        except (MemoryError, ValueError) as e:
            if isinstance(e, ConfigError):
                raise
            raise KvCacheFullError(
                f"a KV cache of {n_blocks + n_windowed} blocks, {self.kv_bytes} bytes, and {n_slots} recurrent states, "
                f"{self.recurrent_bytes} bytes, can't be reserved ({e}): lower kv_budget, context_size or kv_block_size"
            ) from None

    def release(self, blocks: Iterable[int], windowed: Iterable[int], slots: Iterable[int]) -> int:
        """Gives the memory of blocks and slots back to the operating system until they are written again.

        Returns the bytes that were released, 0 where the system has no way to do it at once. The contents are lost; no
        step may run meanwhile.
        """
        blocks, windowed, slots = list(blocks), list(windowed), list(slots)
        released = 0
        for layer in self.layers:
            for slab in layer:
                if isinstance(slab, RecurrentSlab):
                    released += release_rows(slab.data, slots)
                else:
                    ids = windowed if slab.windowed else blocks
                    released += release_rows(slab.k, ids) + release_rows(slab.v, ids)
        return released

    def copy_block(self, source: int, target: int, *, windowed: bool = False) -> None:
        """Copies keys and values of all layers of a group, with a window or without, from one block to another.

        Raises ConfigError for blocks that don't exist. Call it between two steps.
        """
        n = self.n_windowed if windowed else self.n_blocks
        for block in (source, target):
            if not 0 <= block < n:
                raise ConfigError(f"KV block {block} is none of the model's {n}, numbered from 0")
        for layer in self.layers:
            for slab in layer:
                if isinstance(slab, KvSlab) and slab.windowed == windowed:
                    slab.k[target] = slab.k[source]
                    slab.v[target] = slab.v[source]
