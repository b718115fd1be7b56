"""Snapshot writer: sections to a file or to bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError, SnapshotFileError
from oxillama.gguf.output import atomic_file
from oxillama.kernels.files import begin_writing
from oxillama.kv_cache.kv_io import HeldPanels
from oxillama.snapshot.format.codec import Bytes, Hashing, check_available, compress, digest_of
from oxillama.snapshot.format.layout import BYTES, RAW, ZSTD, Section, code_of, head_of, placed
from oxillama.snapshot.format.reader import STATE, Contents

__all__ = [
    "packed",
    "write_file",
    "write_version",
]

EARLY = 1 << 20  # bytes after which the flush to disk may begin


class _Part:
    """A section to be written."""

    def __init__(self, name: str, code: int, first: int, array: NDArray[Any] | HeldPanels, squeeze: bool) -> None:
        self.name, self.code, self.first, self.shape = name, code, first, array.shape
        self.codec, self._array = ZSTD if squeeze else RAW, array
        self.n_stored = prod(array.shape) * array.dtype.itemsize
        self._squeezed = compress(memoryview(b"".join(cast(Any, self._plain())))) if squeeze else None
        if self._squeezed is not None:
            self.n_stored = len(self._squeezed)

    def _plain(self) -> list[Bytes]:
        array = self._array
        pieces = array.pieces() if isinstance(array, HeldPanels) else [np.ascontiguousarray(array)]
        return [piece.reshape(-1).view(np.uint8) for piece in pieces]

    def data(self) -> list[Bytes]:
        """The stored bytes, in pieces."""
        return self._plain() if self._squeezed is None else [np.frombuffer(self._squeezed, np.uint8)]

    @property
    def line(self) -> tuple[str, int, int, tuple[int, ...], int, int, bytes]:
        return self.name, self.code, self.codec, self.shape, self.first, self.n_stored, bytes(32)


def _parts(saved: Contents, squeeze: bool) -> list[_Part]:
    if squeeze:
        check_available()
    described = np.frombuffer(saved.described(), np.uint8)
    parts = [_Part(STATE, BYTES, 0, described, False)]
    for name, rows in saved.tensors.items():
        parts.append(
            _Part(name, code_of(rows.data.dtype), rows.first, rows.data, squeeze and bool(prod(rows.data.shape)))
        )
    return parts


def _finished(sections: Sequence[Section], digests: Sequence[bytes]) -> bytes:
    return head_of([replace(s, digest=digest) for s, digest in zip(sections, digests, strict=True)])


def packed(saved: Contents, *, squeeze: bool = False) -> bytes:
    """The bytes of a file of version 2."""
    parts = _parts(saved, squeeze)
    sections = placed([part.line for part in parts])
    stored = [part.data() for part in parts]
    pieces = [np.frombuffer(_finished(sections, [digest_of(data) for data in stored]), np.uint8)]
    end = len(pieces[0])
    for data, section in zip(stored, sections, strict=True):
        pieces += [np.zeros(section.offset - end, np.uint8), *data]
        end = section.offset + section.n_stored
    return b"".join(cast(Any, pieces))


def write_file(saved: Contents, path: Path, *, squeeze: bool = False) -> None:
    """Writes version 2 to a file, which takes its name when all bytes are on disk. Raises SnapshotFileError."""
    parts = _parts(saved, squeeze)
    sections = placed([part.line for part in parts])
    digests, begun = [], 0
    with _target(path) as f, Hashing() as hashed:
        for part, section in zip(parts, sections, strict=True):
            data = part.data()
            digests.append(hashed(data))
            f.seek(section.offset)
            f.writelines(cast(Any, data))
            if section.offset - begun >= EARLY:
                begun = _begin_flush(f, begun, section.offset)
        f.truncate(sections[-1].offset + sections[-1].n_stored)  # an empty last section writes nothing at its offset
        f.seek(0)
        f.write(_finished(sections, [digest() for digest in digests]))


def _begin_flush(f: BinaryIO, first: int, end: int) -> int:
    """Starts the system's writing of bytes to disk, so that the final fsync waits for less. Returns `end`."""
    f.flush()
    begin_writing(f.fileno(), first, end - first)
    return end


def write_version(data: bytes, path: Path) -> None:
    """Writes bytes of another format, as atomically as `write_file`. Raises SnapshotFileError."""
    with _target(path) as f:
        f.write(data)


@contextmanager
def _target(path: Path) -> Iterator[BinaryIO]:
    try:
        with atomic_file(path) as f:
            yield f
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        elif isinstance(error, ConfigError) or "null" in str(error):
            reason = str(error)
        else:
            raise
        raise SnapshotFileError(f"{str(path)!r}: the snapshot can't be written: {reason}") from error
