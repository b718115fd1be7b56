"""Layout of version 2 of a snapshot file: a header, a table of sections, and the sections.

Integers are little-endian. What is not described of header and table is zero, and checked to be.

Header, 96 bytes:

====== ===== ===================================================================
offset type  what
====== ===== ===================================================================
0      8s    magic, ``OXISNAP1``
8      u32   version, 2
12     u32   number of sections
16     u64   bytes of the file
64     32s   BLAKE3 of the 64 bytes before it and of the table
====== ===== ===================================================================

Table, right after it, 144 bytes for each section:

====== ===== ===================================================================
0      32s   name: ASCII letters, digits, ``.`` and ``_``, then zeros
32     u32   type of its values: 0 bytes, 1 u8, 2 i32, 3 u64, 4 f32, 5 f64
36     u32   how they are stored: 0 as they are, 1 as one frame of zstd
40     u32   dimensions, 1 to 4
48     4 u64 shape, zeros after the dimensions
80     u64   the first of its rows: those before are in another file
88     u64   offset in the file
96     u64   bytes that are stored
112    32s   BLAKE3 of these
====== ===== ===================================================================

Sections follow in the order of the table, each from a multiple of 64 bytes on, so that arrays that are stored as they
are can be read where they lie in a mapped file. The bytes between two of them, at most 63, are written as zeros and
never read: no hash covers them, and nothing follows from them. The file ends with the last section. The section
``state`` is JSON and says what the others are (`snapshot/format/reader.py`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from blake3 import blake3

from oxillama.errors import SnapshotDamagedError, SnapshotFormatError

__all__ = [
    "ALIGNMENT",
    "HEADER_BYTES",
    "MAGIC",
    "RAW",
    "VERSION",
    "ZSTD",
    "Section",
    "head_of",
    "placed",
    "read_head",
]

MAGIC = b"OXISNAP1"
VERSION = 2
ALIGNMENT = 64
HEADER_BYTES = 96
SIGNED_BYTES = 64  # of the header
RAW, ZSTD = range(2)
BYTES = 0
TYPES = {BYTES: "|u1", 1: "|u1", 2: "<i4", 3: "<u8", 4: "<f4", 5: "<f8"}
CODES = {dtype: code for code, dtype in TYPES.items() if code}
MAX_SECTIONS = 1 << 16
MAX_DIMENSIONS = 4

_HEADER = struct.Struct("<8sIIQ40x")
_ENTRY = struct.Struct("<32s4I4Q4Q32s")
_NAME = re.compile(rb"[A-Za-z0-9._]{1,32}\0*\Z")


@dataclass(frozen=True)
class Section:
    """An entry of the section table. shape: of the rows from `first` on; n_stored: bytes in the file."""

    name: str
    code: int
    codec: int
    shape: tuple[int, ...]
    first: int
    offset: int
    n_stored: int
    digest: bytes

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(TYPES[self.code])

    @property
    def nbytes(self) -> int:
        """Bytes of the values in memory."""
        return prod(self.shape) * self.dtype.itemsize


def code_of(dtype: np.dtype[Any]) -> int:
    """The code of a type in the file."""
    return CODES[dtype.newbyteorder("<").str if dtype.itemsize > 1 else "|u1"]


def aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def placed(sections: Sequence[tuple[str, int, int, tuple[int, ...], int, int, bytes]]) -> list[Section]:
    """Table entries for sections (name, code, codec, shape, first, n_stored, digest) in their order."""
    found, offset = [], HEADER_BYTES + _ENTRY.size * len(sections)
    for name, code, codec, shape, first, n_stored, digest in sections:
        offset = aligned(offset)
        found.append(Section(name, code, codec, shape, first, offset, n_stored, digest))
        offset += n_stored
    return found


def _entry(s: Section) -> bytes:
    shape = (*s.shape, *[0] * (MAX_DIMENSIONS - len(s.shape)))
    numbers = s.first, s.offset, s.n_stored, 0
    return _ENTRY.pack(s.name.encode(), s.code, s.codec, len(s.shape), 0, *shape, *numbers, s.digest)


def head_of(sections: Sequence[Section]) -> bytes:
    """Header and table."""
    table = b"".join(map(_entry, sections))
    last = sections[-1]
    signed = _HEADER.pack(MAGIC, VERSION, len(sections), last.offset + last.n_stored)
    return signed + blake3(signed + table).digest() + table


def read_size(header: bytes, label: str) -> int:
    """Bytes of header and table together. Raises SnapshotFormatError for another version, or for no snapshot."""
    if header[:8] != MAGIC:
        raise SnapshotFormatError(f"{label}: this is no snapshot: it begins with {header[:8]!r}, not {MAGIC!r}")
    if len(header) < HEADER_BYTES:
        raise SnapshotDamagedError(f"{label}: the file ends in the header, after {len(header)} bytes")
    _, version, n, _ = _HEADER.unpack_from(header)
    if version != VERSION:
        raise SnapshotFormatError(f"{label}: version {version} of snapshots is not known here: 1 and {VERSION} are")
    if not 0 < n <= MAX_SECTIONS:
        raise SnapshotDamagedError(f"{label}: the header says {n} sections; 1 to {MAX_SECTIONS} can be")
    size: int = HEADER_BYTES + n * _ENTRY.size
    return size


def read_head(head: bytes, n_bytes: int, label: str) -> list[Section]:
    """The section table, checked against the file's size. Raises SnapshotDamagedError, which names the section."""
    signed, digest, table = head[:SIGNED_BYTES], head[SIGNED_BYTES:HEADER_BYTES], head[HEADER_BYTES:]
    if blake3(signed + table).digest() != digest:
        raise SnapshotDamagedError(f"{label}: header and table of sections are not those that were written")
    _, _, n, size = _HEADER.unpack_from(signed)
    if size != n_bytes:
        raise SnapshotDamagedError(f"{label}: the file has {n_bytes} bytes, and {size} were written")
    if signed[_HEADER.size - 40 :].strip(b"\0"):
        raise SnapshotDamagedError(f"{label}: the header holds more than is known here")
    end, found = len(head), []
    for i in range(n):
        section = _read_entry(table[i * _ENTRY.size : (i + 1) * _ENTRY.size], f"{label}: section {i}")
        if section.offset != aligned(end) or section.offset + section.n_stored > size:
            raise SnapshotDamagedError(
                f"{label}: section {section.name} is said to be {section.n_stored} bytes at {section.offset}; the one "
                f"before ends at {end}, the file at {size}"
            )
        end = section.offset + section.n_stored
        found.append(section)
    if end != size or len({s.name for s in found}) < n:
        raise SnapshotDamagedError(f"{label}: sections end at {end} of {size} bytes, or two have the same name")
    return found


def _read_entry(entry: bytes, label: str) -> Section:
    name, code, codec, n_dims, zero, *numbers, digest = _ENTRY.unpack(entry)
    shape, (first, offset, n_stored, padding) = numbers[:4], numbers[4:]
    if not _NAME.match(name) or code not in TYPES or codec not in (RAW, ZSTD) or not 1 <= n_dims <= MAX_DIMENSIONS:
        raise SnapshotDamagedError(f"{label}: no such name, type, codec or number of dimensions is known")
    if zero or padding or any(shape[n_dims:]) or prod(shape[:n_dims]) >= 1 << 48 or first >= 1 << 48:
        raise SnapshotDamagedError(f"{label}: its shape is {shape} from row {first}, which can't be")
    section = Section(name.rstrip(b"\0").decode(), code, codec, tuple(shape[:n_dims]), first, offset, n_stored, digest)
    if codec == RAW and section.nbytes != n_stored:
        raise SnapshotDamagedError(f"{label}: {n_stored} bytes are stored, and {section.nbytes} in its shape")
    return section
