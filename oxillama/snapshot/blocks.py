"""Blocks of tokens that the snapshots in a folder have in common, each stored once, under the hash of what it holds.

``FOLDER/blocks/ab/cdef…`` holds `BLOCK_PANELS` panels of 16 tokens of every array that a snapshot names, one after
another; its name is the BLAKE3 of that. Equal beginnings of sessions are equal bits, and so the same files.

Who writes a snapshot holds the file ``blocks/lock`` together with others, from the first block to the snapshot's name;
who removes blocks holds it alone. So no process removes what another is about to refer to.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama.errors import SnapshotDamagedError, SnapshotFileError, SnapshotFormatError
from oxillama.gguf.output import atomic_file
from oxillama.interrupt import DeferredInterrupt
from oxillama.snapshot.fields import Fields
from oxillama.snapshot.layout import Section
from oxillama.snapshot.sources import FileSource, Source

__all__ = ["BLOCK_FOLDER", "BLOCK_PANELS", "held", "put_block", "read_blocks", "remove_others"]

BLOCK_FOLDER = "blocks"
LOCK = "lock"
BLOCK_PANELS = 4  # 64 tokens: of a model of a billion weights, 2 MB


@contextmanager
def held(folder: Path, *, alone: bool) -> Iterator[Path]:
    """The folder of the blocks, made if it isn't there, held with others or alone. Raises SnapshotFileError."""
    blocks, owned = folder / BLOCK_FOLDER, list[int]()
    try:
        try:
            _take(blocks, owned, alone=alone)
            yield blocks
        finally:
            _let_go(owned)
    except BaseException:  # of a signal, perhaps, that came before that had begun: nobody else could collect garbage
        _let_go(owned)
        raise


def _take(blocks: Path, owned: list[int], *, alone: bool) -> None:
    try:
        blocks.mkdir(exist_ok=True)
        with DeferredInterrupt():
            owned.append(os.open(blocks / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        fcntl.flock(owned[0], fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SnapshotFileError(f"{str(blocks)!r}: there can be no blocks: {reason}") from error


def _let_go(owned: list[int]) -> None:
    with DeferredInterrupt():
        for descriptor in owned:
            with suppress(OSError):
                # Not by closing alone: a process that was forked meanwhile has a copy, and holds it while it lives.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            with suppress(OSError):
                os.close(descriptor)
        owned.clear()


def put_block(blocks: Path, parts: list[NDArray[Any]]) -> str:
    """Stores a block unless it is there: its name. One that is there and damaged is written again."""
    h = blake3()
    for part in parts:
        h.update(cast(Any, part))
    digest = h.hexdigest()
    path = blocks / digest[:2] / digest[2:]
    if not _intact(path, digest):
        path.parent.mkdir(exist_ok=True)
        with atomic_file(path) as f:
            for part in parts:
                f.write(cast(Any, part))
    return digest


def _intact(path: Path, digest: str) -> bool:
    try:
        return blake3(path.read_bytes()).hexdigest() == digest
    except OSError:
        return False


def read_blocks(
    source: Source, given: Fields, sections: Mapping[str, Section], expect: Callable[[Section], None]
) -> dict[str, NDArray[Any]]:
    """The rows of arrays that are in blocks: all of those before the file's own.

    Raises SnapshotFileError for a block that is missing, SnapshotDamagedError for one that holds something else, and
    what `expect` raises for an array that can't be, before there is memory for it.
    """
    if source.folder is None:
        raise SnapshotFormatError(f"{source.label}: it needs the folder {BLOCK_FOLDER!r} beside it: give its path")
    names, digests = given.texts("arrays"), given.texts("digests")
    n_rows = BLOCK_PANELS * len(digests)
    found, sizes = {}, []
    for name in names:
        section = sections.get(name)
        if section is None or section.first != n_rows or name in found:
            raise given.wrong("arrays", f"the arrays that begin with {n_rows} rows in blocks")
        expect(section)
        row = prod(section.shape[1:]) * section.dtype.itemsize
        found[name] = np.empty((n_rows, *section.shape[1:]), section.dtype)
        sizes.append(BLOCK_PANELS * row)
    for i, digest in enumerate(digests):
        data, at = _block(source, digest, sum(sizes)), 0
        for name, size in zip(names, sizes, strict=True):
            rows = found[name][i * BLOCK_PANELS : (i + 1) * BLOCK_PANELS]
            rows[:] = np.frombuffer(data[at : at + size], rows.dtype).reshape(rows.shape)
            at += size
    return found


def _block(source: Source, digest: str, size: int) -> memoryview:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise SnapshotDamagedError(f"{source.label}: {digest!r:.80} is no name of a block")
    path = cast(Path, source.folder) / BLOCK_FOLDER / digest[:2] / digest[2:]
    try:
        block = FileSource(path)
    except SnapshotFileError as error:
        raise SnapshotFileError(f"{source.label}: block {digest} can't be read: {error}") from error
    try:
        if block.n_bytes != size:
            raise SnapshotDamagedError(f"{source.label}: block {digest} has {block.n_bytes} bytes, not {size}")
        data = block.read(0, size)
    finally:
        block.close()
    if blake3(data).hexdigest() != digest:
        raise SnapshotDamagedError(f"{source.label}: block {digest} holds other bytes than were written")
    return data


def remove_others(blocks: Path, wanted: set[str]) -> int:
    """Removes the blocks that nobody wants, and what writers that died left of theirs: bytes that are free by that."""
    freed = 0
    for folder in sorted(path for path in blocks.iterdir() if path.is_dir()):
        for path in list(folder.iterdir()):
            if folder.name + path.name not in wanted:
                freed += path.stat().st_size
                path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    return freed
