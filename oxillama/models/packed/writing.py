"""Packed file writer: matrices repacked one by one, written in large pieces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, BinaryIO, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama.gguf import GGUFFile
from oxillama.gguf.pages import release_pages
from oxillama.models.packed.layout import PANEL_LAYOUT, Entry, Header, placed
from oxillama.models.weights import Stored, Weights

__all__ = ["header_of", "write_packed"]

# File systems with large folios (ext4 since Linux 6.16, XFS) keep what an aligned write of 2 MB or more brings in pages
# of that size, and map it so: 372 of 387 of a file of 812 MB on ext4 in Linux 6.18. After writes of 64 kB of another
# file it was none.
PIECE = 32 << 20

# Bytes after which they are waited for on disk: the flush at the end would otherwise be of all that memory holds, in
# which the file doesn't change, so that a process that waits for it can't tell a slow disk from a packer that stopped.
UNFLUSHED = 512 << 20


def header_of(weights: Weights, file: GGUFFile, model: bytes) -> Header:
    """The header of the packed file of a model that is built but not repacked, without digests of its entries.

    model: digest of the model's files.
    """
    sources = [shard.source for shard in file.shards]
    entries, rows = [], []
    for stored in weights.stored:
        w = stored.matrix
        nbytes = w.panels_nbytes if w.has_panels else w.file_nbytes
        entries.append(Entry(w.name, w.type, tuple(w.shape), w.has_panels, nbytes))
        rows.append([w.name, w.type, list(w.shape), w.has_panels, origin(stored, sources)])
    plan = blake3(json.dumps([PANEL_LAYOUT, rows]).encode()).digest()
    path = "" if file.path is None else os.path.abspath(file.path)
    return placed(Header(model, plan, PANEL_LAYOUT, 0, os.fsencode(path).decode(errors="replace"), tuple(entries)))


def origin(stored: Stored, sources: list[Any]) -> object:
    """Origin of a matrix: file and offset, or of one that no file has in this form, the digest of its bytes."""
    if stored.offset < 0:
        return blake3(cast(Any, stored.matrix.data)).hexdigest()
    return [sources.index(stored.source), stored.offset]


def write_packed(
    out: BinaryIO, weights: Weights, header: Header, num_threads: int, progress: Callable[[int], None] | None
) -> None:
    """Writes a packed file; the weights can't be used after this until they have others
    (`Weights.take`) or are read from the file (`Weights.move_to`).

    ``progress`` gets the bytes of each matrix. Raises OSError.
    """
    largest = max((w.panels_nbytes for w in (s.matrix for s in weights.stored) if w.has_panels), default=0)
    scratch, found = np.empty(largest + 64, np.uint8), []
    pieces = _Pieces(out.fileno())
    for stored, entry in zip(weights.stored, header.entries, strict=True):
        w, n_bytes = stored.matrix, stored.matrix.file_nbytes
        if entry.panels:
            w.repack(num_threads=num_threads, release=release_pages, allocate=lambda n: scratch[:n])
        part = w.panels if entry.panels else w.data
        assert part is not None
        found.append(replace(entry, digest=blake3(cast(Any, part)).digest()))
        pieces.put(entry.offset, part)
        if progress is not None:
            progress(n_bytes)
    pieces.flush()
    _write(out.fileno(), 0, memoryview(replace(header, entries=tuple(found)).encoded()))


class _Pieces:
    """Bytes on their way into a file, in writes of whole pieces; what is left out between them is zeros."""

    def __init__(self, fd: int) -> None:
        self._fd, self._piece, self._first, self._end = fd, np.zeros(PIECE, np.uint8), 0, 0
        self._unflushed = 0

    def put(self, offset: int, data: NDArray[np.uint8]) -> None:
        done = 0
        while done < len(data):
            at = offset + done - self._first
            if at >= PIECE:
                self.flush()
                continue
            n = min(PIECE - at, len(data) - done)
            self._piece[at : at + n] = data[done : done + n]
            done, self._end = done + n, at + n

    def flush(self) -> None:
        """Writes the piece up to where it is filled, and begins the next."""
        _write(self._fd, self._first, memoryview(cast(Any, self._piece))[: self._end])
        self._unflushed += self._end
        if self._unflushed >= UNFLUSHED:
            os.fsync(self._fd)
            self._unflushed = 0
        self._piece[:] = 0
        self._first, self._end = self._first + PIECE, 0


def _write(fd: int, offset: int, data: memoryview) -> None:
    while data:
        n = os.pwrite(fd, data, offset)
        data, offset = data[n:], offset + n
