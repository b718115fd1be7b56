"""KV input and output: keys, values and states of sequences as bytes, for snapshots.

Panels are what blocks of any size are made of: 16 tokens of one head (`ox_kv_type` in ``csrc/ox_kernels.h``). Blocks
and slots that a step is reading or writing must be left alone: call these between two steps.

"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError
from oxillama.kernels.attention import KvSlab, kv_bytes
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kv_cache.arrays import StateArrays

__all__ = [
    "PANEL",
    "HeldPanels",
    "SavedState",
    "copy_state",
    "hold_kv",
    "n_panels",
    "panel_shapes",
    "panels_of",
    "restore_kv",
    "restore_state",
    "save_kv",
    "save_source",
    "save_state",
    "values_of",
]

PANEL = 16  # tokens
# Consecutive panels from which on a run is written from the cache without a copy: each run costs a system call.
LEAST_RUN = 4
FLOATS = {"f16": np.float16, "f32": np.float32}
# Bytes of the codes of 32 values, before whose scales they stand.
CODED = {"q8_0": 32, "q4_0": 16}
# What codes of four bits stand for: `ox_codes_kv` in csrc/scalar/four_bits.h.
FOUR_BITS = np.array([-127, -98, -77, -59, -44, -31, -18, -6, 6, 18, 31, 44, 59, 77, 98, 127], np.float32)

Pair = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def n_panels(n_tokens: int) -> int:
    return -(-n_tokens // PANEL)


def panel_shapes(slab: KvSlab) -> tuple[tuple[int, int], tuple[int, int]]:
    """[heads, bytes] of a panel of keys, and of one of values."""
    k, v = kv_bytes(slab.kv_type, PANEL, slab.k_dim, slab.v_dim)
    return (slab.n_heads, k), (slab.n_heads, v)


def save_kv(slab: KvSlab, table: Sequence[int], first: int, n_tokens: int) -> Pair:
    """Keys and values of the first n_tokens of a block table from panel `first` on: uint8 [panels, heads, bytes].

    Values of other sequences in the last panel are replaced by zeros.
    """
    n = n_panels(n_tokens) - first
    k, v = (np.empty((n, *shape), np.uint8) for shape in panel_shapes(slab))
    for data, panels in ((slab.k, k), (slab.v, v)):
        _gather(slab, data, table, first, panels)
    if n_tokens % PANEL and n:
        _clear(slab, k[-1], v[-1], n_tokens % PANEL)
    return k, v


def save_source(slab: KvSlab, table: Sequence[int], n_tokens: int, n_source: int, n_encoded: int) -> Pair:
    """`save_kv` of a sequence that begins with a source: n_source tokens that an encoder read, in n_encoded positions.

    Values of other sequences between the two are replaced by zeros.
    """
    k, v = save_kv(slab, table, 0, n_tokens)
    first, filled = divmod(n_source, PANEL)
    if filled:
        _clear(slab, k[first], v[first], filled)
        first += 1
    k[first : n_encoded // PANEL] = v[first : n_encoded // PANEL] = 0
    return k, v


class HeldPanels:
    """The keys or the values of `save_kv`, gathered on request.

    The blocks of the table must not be written meanwhile, except the last one if it isn't full: that is copied at once.
    shape, dtype: those of the array. A slice of it is an array.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, slab: KvSlab, data: NDArray[np.uint8], table: list[int], first: int, tail: NDArray[np.uint8]):
        self._slab, self._data, self._table, self._first, self._tail = slab, data, table, first, tail
        self._n_held = max(0, len(table) * (slab.block_tokens // PANEL) - first)
        self.shape: tuple[int, ...] = (self._n_held + len(tail), *tail.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]:
        begin, end, _ = rows.indices(len(self))
        found = np.empty((max(0, end - begin), *self.shape[1:]), np.uint8)
        split = max(0, min(self._n_held - begin, len(found)))
        if split:
            _gather(self._slab, self._data, self._table, self._first + begin, found[:split])
        found[split:] = self._tail[max(0, begin - self._n_held) :][: len(found) - split]
        return found

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """All panels in order; views of the cache where they are contiguous there."""
        runs = self._runs()
        if runs and len(runs) * LEAST_RUN <= self._n_held:
            yield from (self._data[begin:end] for begin, end in runs)
        elif self._n_held:
            yield self[: self._n_held]
        if len(self._tail):
            yield self._tail

    def _runs(self) -> list[tuple[int, int]]:
        """Runs (first, end) of blocks that are consecutive in the cache too; none if blocks are not panels."""
        if self._slab.block_tokens != PANEL:
            return []
        found: list[tuple[int, int]] = []
        begin = end = -1
        for block in self._table[self._first :]:
            if block != end:
                found += [(begin, end)] * (end > begin)
                begin = block
            end = block + 1
        return [*found, (begin, end)] if end > begin else found


def hold_kv(slab: KvSlab, table: Sequence[int], first: int, n_tokens: int) -> tuple[HeldPanels, HeldPanels]:
    """`save_kv` for later, if the full blocks of the table stay as they are."""
    full = n_tokens // slab.block_tokens
    tail = save_kv(slab, table, max(first, full * slab.block_tokens // PANEL), n_tokens)
    k, v = (HeldPanels(slab, d, list(table[:full]), first, t) for d, t in zip((slab.k, slab.v), tail, strict=True))
    return k, v


def _gather(slab: KvSlab, data: NDArray[np.uint8], table: Sequence[int], first: int, panels: NDArray[np.uint8]) -> None:
    per = slab.block_tokens // PANEL
    begin, end = first // per, -(-(first + len(panels)) // per)
    blocks = np.array(table[begin:end], np.int64)
    if per == 1:
        np.take(data, blocks, axis=0, out=panels, mode="clip")  # any other mode would copy twice
        return
    n_bytes = data.shape[2] // per
    split = np.take(data, blocks, axis=0).reshape(len(blocks), slab.n_heads, per, n_bytes).transpose(0, 2, 1, 3)
    whole = split.reshape(len(blocks) * per, slab.n_heads, n_bytes)
    panels[:] = whole[first - begin * per :][: len(panels)]


def restore_kv(slab: KvSlab, table: Sequence[int], first: int, pair: Pair) -> None:
    """Puts panels from `first` on into the blocks of a table. Shapes must be those of `panel_shapes`."""
    per = slab.block_tokens // PANEL
    for data, panels in zip((slab.k, slab.v), pair, strict=True):
        if per == 1:
            data[np.array(table[first : first + len(panels)], np.int64)] = panels
            continue
        for i, panel in enumerate(panels, first):
            data[table[i // per]].reshape(slab.n_heads, per, -1)[:, i % per] = panel


def _clear(slab: KvSlab, k: NDArray[np.uint8], v: NDArray[np.uint8], n_tokens: int) -> None:
    """Zeros after the first n_tokens of a panel, [heads, bytes] of keys and of values."""
    if slab.kv_type in CODED:
        (k_codes, k_scales), (v_codes, v_scales) = _codes(slab, k), _codes(slab, v)
        k_scales[..., n_tokens:] = v_scales[..., n_tokens:] = 0
        k_codes.reshape(slab.n_heads, -1, PANEL, 4)[:, :, n_tokens:] = 0
        later = np.arange(PANEL).reshape(4, 4) >= n_tokens
        v_codes.reshape(slab.n_heads, 4, -1, 4).swapaxes(2, 3)[:, later] = 0
        return
    dtype = FLOATS[slab.kv_type]
    k.view(dtype).reshape(slab.n_heads, -1, PANEL)[..., n_tokens:] = 0
    v.view(dtype).reshape(slab.n_heads, PANEL, -1)[:, n_tokens:] = 0


def _codes(slab: KvSlab, panels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Views of coded panels [..., bytes]: codes [..., bytes], and scales [..., 32 dimensions each, tokens]."""
    n = panels.shape[-1] // (CODED[slab.kv_type] + 2) * CODED[slab.kv_type]
    scales = panels[..., n:].view(np.float16)
    return panels[..., :n], scales.reshape(*scales.shape[:-1], -1, PANEL)


def values_of(slab: KvSlab, pair: Pair, n_tokens: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Values of panels from the first token on: keys float32 [n_tokens, heads, k_dim], values [..., v_dim]."""
    (k, v), n, heads = pair, len(pair[0]), slab.n_heads
    if slab.kv_type in CODED:
        (k_codes, k_scales), (v_codes, v_scales) = _codes(slab, k), _codes(slab, v)
        if slab.kv_type == "q8_0":
            keys = k_codes.reshape(n, heads, -1, PANEL, 4).transpose(0, 3, 1, 2, 4).astype(np.float32) - 128
            values = v_codes.view(np.int8).reshape(n, heads, 4, -1, 4).transpose(0, 2, 4, 1, 3).astype(np.float32)
        else:
            keys = _halves(k_codes.reshape(n, heads, -1, 4, PANEL, 4), 3).transpose(0, 5, 1, 2, 3, 4, 6)
            values = _halves(v_codes.reshape(n, heads, 4, -1, 16, 4), 4).transpose(0, 2, 6, 1, 3, 4, 5)
        keys, values = _scaled(keys, k_scales), _scaled(values, v_scales)
        if slab.kv_type == "q4_0":
            keys, values = _rotated(keys), _rotated(values)
    else:
        dtype = FLOATS[slab.kv_type]
        keys = k.view(dtype).reshape(n, heads, -1, PANEL).transpose(0, 3, 1, 2).reshape(n * PANEL, heads, -1)
        values = v.view(dtype).reshape(n, heads, PANEL, -1).transpose(0, 2, 1, 3).reshape(n * PANEL, heads, -1)
    return (
        np.ascontiguousarray(keys[:n_tokens, :, : slab.k_dim], np.float32),
        np.ascontiguousarray(values[:n_tokens, :, : slab.v_dim], np.float32),
    )


def _halves(codes: NDArray[np.uint8], axis: int) -> NDArray[np.float32]:
    """Values of both halves of bytes, along a new axis."""
    return FOUR_BITS[np.stack([codes & 15, codes >> 4], axis)]


def _scaled(codes: NDArray[np.float32], scales: NDArray[np.float16]) -> NDArray[np.float32]:
    """Codes [panels, ... tokens, heads, ... dimensions] times their scales: [tokens, heads, dimensions]."""
    n, heads = len(scales) * PANEL, scales.shape[1]
    each = scales.transpose(0, 3, 1, 2).astype(np.float32).reshape(n, heads, -1)
    return codes.reshape(n, heads, -1) * np.repeat(each, 32, axis=-1)


def _rotated(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """[..., dimensions] as `ox_rotate` in ``csrc/scalar/four_bits.h`` turns them, there and back."""
    if not x.shape[-1]:  # of an index, which has keys alone
        return x
    run = min(x.shape[-1] & -x.shape[-1], 256)
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < run:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    turned: NDArray[np.float32] = (x.reshape(-1, run) @ (matrix / np.sqrt(np.float32(run)))).reshape(x.shape)
    return turned


def panels_of(slab: KvSlab, keys: NDArray[np.float32], values: NDArray[np.float32]) -> Pair:
    """The inverse of `values_of` where keys and values are stored as float32, without loss."""
    n_tokens, heads = len(keys), slab.n_heads
    n, v_dim = n_panels(n_tokens), -(-slab.v_dim // PANEL) * PANEL
    k = np.zeros((n * PANEL, heads, slab.k_dim), np.float32)
    v = np.zeros((n * PANEL, heads, v_dim), np.float32)
    k[:n_tokens], v[:n_tokens, :, : slab.v_dim] = keys, values
    k = np.ascontiguousarray(k.reshape(n, PANEL, heads, -1).transpose(0, 2, 3, 1))
    v = np.ascontiguousarray(v.reshape(n, PANEL, heads, -1).transpose(0, 2, 1, 3))
    return k.reshape(n, heads, -1).view(np.uint8), v.reshape(n, heads, -1).view(np.uint8)


# The state of each recurrent layer in the order of layers, float32 [n_values].
SavedState = list[NDArray[np.float32]]


def copy_state(arrays: StateArrays, source: int, target: int) -> None:
    """Copies the state in slot `source` to slot `target`, over all layers. Raises ConfigError for slots that don't
    exist."""
    _check_slots(arrays, source, target)
    for slab in _slabs(arrays):
        slab.data[target] = slab.data[source]


def save_state(arrays: StateArrays, slot: int) -> SavedState:
    """A copy of the state in a slot. Raises ConfigError for a slot that doesn't exist."""
    _check_slots(arrays, slot)
    return [slab.data[slot].copy() for slab in _slabs(arrays)]


def restore_state(arrays: StateArrays, slot: int, saved: Sequence[NDArray[np.float32]]) -> None:
    """Puts a saved state into a slot, bit by bit.

    Raises ConfigError, and changes nothing, for a slot that doesn't exist, and for arrays that don't fit this model in
    number, shape [n_values] or type float32.
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
