"""A snapshot to bytes, or to a file: as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama.errors import ConfigError, SnapshotFileError
from oxillama.gguf.output import atomic_file
from oxillama.snapshot.compression import check_available, compress
from oxillama.snapshot.layout import RAW, ZSTD, Section, code_of, head_of, placed
from oxillama.snapshot.saved import STATE, Saved

__all__ = ["packed", "write_file", "write_version"]


class _Part:
    """A section on its way into a file."""

    def __init__(self, name: str, code: int, first: int, array: NDArray[Any], squeeze: bool) -> None:
        self.name, self.code, self.first, self.shape = name, code, first, array.shape
        data = memoryview(cast(Any, np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
        self.codec = ZSTD if squeeze else RAW
        self.data = memoryview(compress(data)) if squeeze else data

    @property
    def line(self) -> tuple[str, int, int, tuple[int, ...], int, int, bytes]:
        return self.name, self.code, self.codec, self.shape, self.first, len(self.data), bytes(32)

    def digest(self) -> bytes:
        return blake3(self.data).digest()


def _parts(saved: Saved, squeeze: bool) -> list[_Part]:
    if squeeze:
        check_available()
    described = np.frombuffer(saved.described(), np.uint8)
    parts = [_Part(STATE, 0, 0, described, False)]
    for name, rows in saved.tensors.items():
        parts.append(_Part(name, code_of(rows.data), rows.first, rows.data, squeeze and rows.data.size > 0))
    return parts


def _finished(sections: Sequence[Section], digests: Sequence[bytes]) -> bytes:
    return head_of([replace(s, digest=digest) for s, digest in zip(sections, digests, strict=True)])


def packed(saved: Saved, *, squeeze: bool = False) -> bytes:
    """The bytes of a file of version 2."""
    parts = _parts(saved, squeeze)
    sections = placed([part.line for part in parts])
    head = _finished(sections, [part.digest() for part in parts])
    out = bytearray(sections[-1].offset + sections[-1].n_stored)
    out[: len(head)] = head
    for part, section in zip(parts, sections, strict=True):
        out[section.offset : section.offset + section.n_stored] = part.data
    return bytes(out)


def write_file(saved: Saved, path: Path, *, squeeze: bool = False) -> None:
    """Writes version 2 to a file, which takes its name when all is on disk. Raises SnapshotFileError."""
    parts = _parts(saved, squeeze)
    sections = placed([part.line for part in parts])
    with _target(path) as f, ThreadPoolExecutor(1) as pool:
        digests = pool.map(_Part.digest, parts)  # while the others are written
        for part, section in zip(parts, sections, strict=True):
            f.seek(section.offset)
            f.write(part.data)
        f.seek(0)
        f.write(_finished(sections, list(digests)))


def write_version(data: bytes, path: Path) -> None:
    """Writes bytes of another format, with the same care. Raises SnapshotFileError."""
    with _target(path) as f:
        f.write(data)


@contextmanager
def _target(path: Path) -> Iterator[Any]:
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
