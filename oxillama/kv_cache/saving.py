"""Recurrent states as plain arrays: to copy, to keep outside of the cache, and to put back.

A slot that a step is reading or writing must be left alone: call these between two steps.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kv_cache.arrays import StateArrays

__all__ = ["SavedState", "copy_state", "restore_state", "save_state"]

# Of each recurrent layer in the order of layers, float32 [n_values].
SavedState = list[NDArray[np.float32]]


def copy_state(arrays: StateArrays, source: int, target: int) -> None:
    """The state in slot `source` to slot `target`, over all layers. Raises ConfigError for slots that there aren't."""
    _check_slots(arrays, source, target)
    for slab in _slabs(arrays):
        slab.data[target] = slab.data[source]


def save_state(arrays: StateArrays, slot: int) -> SavedState:
    """A copy of the state in a slot. Raises ConfigError for a slot that there isn't."""
    _check_slots(arrays, slot)
    return [slab.data[slot].copy() for slab in _slabs(arrays)]


def restore_state(arrays: StateArrays, slot: int, saved: Sequence[NDArray[np.float32]]) -> None:
    """Puts a saved state into a slot, bit by bit.

    Raises ConfigError, and changes nothing, for a slot that there isn't, and for arrays that are not those of this
    model: their number, each one's shape [n_values] and type float32.
    """
    _check_slots(arrays, slot)
    slabs = list(_slabs(arrays))
    if len(saved) != len(slabs):
        raise ConfigError(f"a saved state of {len(saved)} recurrent layers; the model has {len(slabs)}")
    for i, (slab, values) in enumerate(zip(slabs, saved, strict=True)):
        if values.shape != (slab.n_values,) or values.dtype != np.float32:
            raise ConfigError(
                f"recurrent layer {i} of a saved state is {values.dtype} {list(values.shape)}; the model's is float32 "
                f"[{slab.n_values}]"
            )
    for slab, values in zip(slabs, saved, strict=True):
        slab.data[slot] = values


def _slabs(arrays: StateArrays) -> Iterator[RecurrentSlab]:
    return (slab for layer in arrays.layers for slab in layer if isinstance(slab, RecurrentSlab))


def _check_slots(arrays: StateArrays, *slots: int) -> None:
    for slot in slots:
        if not 0 <= slot < arrays.n_slots:
            raise ConfigError(f"recurrent slot {slot} is none of the model's {arrays.n_slots}, numbered from 0")
