"""Sequences of a KV cache as snapshot arrays, and back. Functions run in a turn of the owner of the sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from oxillama.config import MAX_CONTEXT
from oxillama.errors import KvCacheFullError, SnapshotDamagedError, SnapshotMismatchError
from oxillama.kernels.attention import KvSlab
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kv_cache.kv_io import PANEL, hold_kv, n_panels, panel_shapes, restore_kv, save_source
from oxillama.scheduling.prefix_cache import BLOCK, WINDOWED
from oxillama.snapshot.format.layout import Section
from oxillama.snapshot.format.reader import ArrayRows

if TYPE_CHECKING:
    from oxillama.core.engine_core import ForkListener
    from oxillama.core.runner import RunnerProtocol
    from oxillama.kv_cache.arrays import StateArrays
    from oxillama.scheduling.pools import KvCachePool
    from oxillama.scheduling.scheduler import Scheduler
    from oxillama.scheduling.sequence import Sequence

__all__ = ["UNKNOWN", "SequenceOwner", "Since", "check_shape", "named_slabs", "put", "save_sequence"]

UNKNOWN = -1  # stands for the tokens of a version 1 file, which doesn't hold them

Held = list[tuple["KvCachePool", list[int]]]

# Tokens that the base file has, and the first and the last panel but one that it has of each array.
Since = Mapping[str, tuple[int, int]]

Slab = KvSlab | RecurrentSlab
SINGLE: dict[str, tuple[str, int]] = {
    "tokens": ("<i4", MAX_CONTEXT),
    "history": ("<i4", MAX_CONTEXT),
    "rng": ("<u8", MAX_CONTEXT + 1),
    "mu": ("<f8", MAX_CONTEXT + 1),
}


T = TypeVar("T")


class SequenceOwner(Protocol):
    """Owner of sequences whose state is saved and restored: the core of an engine (`EngineCore`) or of a draft model
    (`DraftCore`)."""

    @property
    def runner(self) -> RunnerProtocol: ...

    @property
    def scheduler(self) -> Scheduler: ...

    def check_open(self) -> None:
        """Raises EngineClosedError once it is closed."""

    def change(self, action: Callable[[], T]) -> T:
        """Runs a short change of state between two steps; its result, or its error, when that is done."""

    def post(self, change: Callable[[], object]) -> None:
        """Runs a short change of state: now, or after the step under way."""

    def tell_of_fork(self, listener: ForkListener) -> None:
        """Calls the listener's `after_fork` in forked children that have the same sequences."""


def named_slabs(arrays: StateArrays) -> Iterator[tuple[str, Slab]]:
    """(name, slab) of every array, in the order of layers."""
    for i, layer in enumerate(arrays.layers):
        for j, slab in enumerate(layer):
            yield f"{'state' if isinstance(slab, RecurrentSlab) else 'kv'}.{i}.{j}", slab


def save_sequence(
    core: SequenceOwner, sequence: Sequence, n: int, since: Since, n_common: int
) -> tuple[dict[str, ArrayRows], Callable[[], None]]:
    """Tokens, and the keys, values and states of the first n; and a function that releases the blocks of these.

    since: rows that the base file has, valid for n_common tokens; nothing of it is used for a sequence with a prompt
    that an encoder reads, since all that it leaves depends on the whole prompt. Full blocks are not copied: their
    reference counts keep them from being written to until that function is called, in a turn of the step loop.
    """
    tensors = {"tokens": ArrayRows.whole(np.array(sequence.tokens, np.int32))}
    if sequence.n_encoded:
        return tensors | _source_arrays(core, sequence, n), lambda: None
    windows, used = core.scheduler.blocks.windows, {BLOCK: n, WINDOWED: n}
    for name, slab in named_slabs(core.runner.arrays) if n else ():
        if isinstance(slab, RecurrentSlab):
            assert sequence.slots is not None
            tensors[name] = ArrayRows.whole(slab.data[sequence.slots.current].copy())
            continue
        kind = WINDOWED if slab.windowed else BLOCK
        start = windows.first(n) * slab.block_tokens // PANEL if slab.windowed and windows else 0
        known = since.get(f"{name}.k")
        first = _first(start, n_panels(n), known if known == since.get(f"{name}.v") else None, n_common // PANEL)
        used[kind] = min(used[kind], first * PANEL // slab.block_tokens)
        for part, panels in zip("kv", hold_kv(slab, sequence.tables[kind], first, n), strict=True):
            tensors[f"{name}.{part}"] = ArrayRows(start, first, panels)
    full = n // core.scheduler.block_size
    held: Held = []
    for kind, pool in core.scheduler.blocks.groups:
        blocks = sequence.tables[kind][used[kind] : full]
        pool.share(blocks)
        held.append((pool, blocks))
    all_held = core.scheduler.blocks.held
    all_held.append(held)
    return tensors, lambda: _let_go(all_held, held)


def _source_arrays(core: SequenceOwner, sequence: Sequence, n: int) -> dict[str, ArrayRows]:
    """Copies of keys and values of a sequence that begins with what an encoder left of its prompt."""
    found: dict[str, ArrayRows] = {}
    for name, slab in named_slabs(core.runner.arrays) if n else ():
        assert isinstance(slab, KvSlab)
        pair = save_source(slab, sequence.block_table, n, sequence.n_source, sequence.n_encoded)
        found |= {f"{name}.{part}": ArrayRows.whole(panels) for part, panels in zip("kv", pair, strict=True)}
    return found


def _let_go(all_held: list[Held], held: Held) -> None:
    while held:  # released once, however often this is called
        pool, blocks = held.pop()
        pool.free(blocks)
    all_held[:] = [one for one in all_held if one]


def _first(start: int, stop: int, known: tuple[int, int] | None, n_common: int) -> int:
    """The first row, of those from start to stop, that must be saved."""
    if known is None or known[0] > start:
        return start
    return max(start, min(stop, known[1], n_common))


def check_shape(core: SequenceOwner, context_size: int, n_vocab: int, section: Section, label: str) -> None:
    """Raises SnapshotMismatchError unless an array is one that this engine can have, before it is read."""
    name, rows, row = section.name, section.shape[0], section.shape[1:]
    wanted: tuple[str, int, tuple[int, ...]] | None = None
    if name in SINGLE:
        wanted = (*SINGLE[name], ())
    elif name == "logits":
        wanted = "<f4", n_vocab, ()
    for known, slab in named_slabs(core.runner.arrays) if wanted is None else ():
        if isinstance(slab, RecurrentSlab):
            if name == known:
                wanted = "<f4", slab.n_values, ()
        elif name in (f"{known}.k", f"{known}.v"):
            wanted = "|u1", n_panels(context_size), panel_shapes(slab)[name.endswith("v")]
    if wanted is None:
        raise SnapshotMismatchError(f"{label}: array {name} is none of this model's")
    dtype, most, of_row = wanted
    if section.dtype != np.dtype(dtype) or section.first + rows > most or row != of_row:
        raise SnapshotMismatchError(
            f"{label}: array {name} is {section.dtype.name} {list(section.shape)} from row {section.first} on; this "
            f"engine's can be {np.dtype(dtype).name}, up to {most} of {list(of_row)}"
        )


def put(core: SequenceOwner, sequence: Sequence, tensors: Mapping[str, ArrayRows], n_computed: int, label: str) -> None:
    """Restores the first n_computed tokens of a new sequence, which has its tokens already.

    Without room in the cache now, or if the engine keeps more of the past than was saved, they are computed again.
    Raises SnapshotDamagedError if arrays are missing, KvCacheFullError if unknown tokens would have to be computed.
    """
    if not n_computed:
        return
    slabs = list(named_slabs(core.runner.arrays))
    _check_complete(slabs, tensors, n_computed, label)
    scheduler = core.scheduler
    if _reaches(core, slabs, tensors, n_computed) and scheduler.blocks.allocate_restored(
        sequence, n_computed, len(scheduler.running)
    ):
        _write(slabs, sequence, tensors)
    elif UNKNOWN in sequence.tokens:
        raise KvCacheFullError(
            f"{label}: there is no room for its {n_computed} tokens now, and they can't be computed again, since the "
            "file doesn't hold them: try again when fewer requests run"
        )


def _check_complete(
    slabs: list[tuple[str, Slab]], tensors: Mapping[str, ArrayRows], n_computed: int, label: str
) -> None:
    for name, slab in slabs:
        recurrent = isinstance(slab, RecurrentSlab)
        stop = slab.n_values if isinstance(slab, RecurrentSlab) else n_panels(n_computed)
        for part in [name] if recurrent else [f"{name}.k", f"{name}.v"]:
            rows = tensors.get(part)
            if rows is None or rows.stop != stop or (recurrent and rows.start):
                raise SnapshotDamagedError(
                    f"{label}: array {part} is missing, or hasn't the rows of {n_computed} tokens"
                )


def _reaches(
    core: SequenceOwner, slabs: list[tuple[str, Slab]], tensors: Mapping[str, ArrayRows], n_computed: int
) -> bool:
    """Whether the snapshot has every row that this engine would still keep."""
    windows = core.scheduler.blocks.windows
    for name, slab in slabs:
        if isinstance(slab, KvSlab):
            needed = windows.first(n_computed) * slab.block_tokens // PANEL if slab.windowed and windows else 0
            if max(tensors[f"{name}.k"].start, tensors[f"{name}.v"].start) > needed:
                return False
    return True


def _write(slabs: list[tuple[str, Slab]], sequence: Sequence, tensors: Mapping[str, ArrayRows]) -> None:
    for name, slab in slabs:
        if isinstance(slab, RecurrentSlab):
            assert sequence.slots is not None
            slab.data[sequence.slots.current] = tensors[name].array
            continue
        table = sequence.tables[WINDOWED if slab.windowed else BLOCK]
        first = (sequence.n_freed_blocks if slab.windowed else 0) * slab.block_tokens // PANEL
        k, v = tensors[f"{name}.k"], tensors[f"{name}.v"]
        restore_kv(slab, table, first, (k.array[first - k.start :], v.array[first - v.start :]))
