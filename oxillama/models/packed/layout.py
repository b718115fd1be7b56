"""Layout of a packed file: a checked header, then panels as the kernels multiply by them.

::

    "OXPACKED"      8 bytes
    version         u32, `VERSION`
    length          u32, bytes of the JSON
    checksum        32 bytes, BLAKE3 of the JSON
    JSON            the fields of `Header`
    zeros           up to `DATA_ALIGNMENT`
    weights         of each entry, at multiples of `ALIGNMENT`

Integers are little-endian. All CPU tiers pack alike (checkasm compares them bit for bit), so a file serves all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from blake3 import blake3

from oxillama.errors import PackedFileError

__all__ = ["ALIGNMENT", "DIGEST_BYTES", "PANEL_LAYOUT", "VERSION", "Entry", "Header", "padded", "placed"]

MAGIC = b"OXPACKED"
VERSION = 1
# Of what `Matrix.repack` writes, for all formats together: a test holds it to their bytes.
PANEL_LAYOUT = 1
ALIGNMENT = 64
DATA_ALIGNMENT = 4096
DIGEST_BYTES = 32
FIXED_BYTES = len(MAGIC) + 4 + 4 + DIGEST_BYTES
MAX_JSON = 64 << 20
MAX_SIZE = 1 << 62


@dataclass(frozen=True)
class Entry:
    """A matrix in the file. panels: in panels, else as GGUF files store it. digest: BLAKE3 of its bytes, 32 bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    panels: bool
    nbytes: int
    offset: int = 0
    digest: bytes = bytes(DIGEST_BYTES)

    def row(self) -> list[Any]:
        """The fields as JSON."""
        return [self.name, self.type, list(self.shape), self.panels, self.nbytes, self.offset, self.digest.hex()]


@dataclass(frozen=True)
class Header:
    """Header of a packed file.

    model: digest of the model's files. plan: digest of how its matrices are cut out of them, and of `PANEL_LAYOUT`.
    layout: of panels. file_size: bytes of the packed file. model_path: of the model that it was made of, for lists; may
    be empty.
    """

    model: bytes
    plan: bytes
    layout: int
    file_size: int
    model_path: str
    entries: tuple[Entry, ...]

    def key(self) -> str:
        """The name in a cache: of the model, and of how this build packs it."""
        return blake3(self.model + self.plan).hexdigest()[:40]

    def encoded(self) -> bytes:
        """The bytes before the weights."""
        fields = {
            "model": self.model.hex(), "plan": self.plan.hex(), "layout": self.layout, "file_size": self.file_size,
            "model_path": self.model_path, "entries": [entry.row() for entry in self.entries],
        }  # fmt: skip
        text = json.dumps(fields).encode()
        numbers = VERSION.to_bytes(4, "little") + len(text).to_bytes(4, "little")
        return padded(MAGIC + numbers + blake3(text).digest() + text, DATA_ALIGNMENT)

    @classmethod
    def read(cls, data: memoryview, label: str) -> Header:
        """The header of a file, whose bytes these are. After this, no entry leads outside the file.

        Raises PackedFileError, which names the place, for anything that `encoded` doesn't write.
        """
        text, start = checked_text(data, label)
        try:
            fields = json.loads(text.decode(), parse_constant=_refuse)
            header = cls._of(fields)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PackedFileError(f"{label}: the header makes no sense: {error!r:.200}") from None
        if header.file_size != len(data):
            raise PackedFileError(f"{label}: {len(data)} bytes; the header says {header.file_size}: the file was cut")
        end = start
        for entry in header.entries:
            if entry.offset != aligned(end, ALIGNMENT):
                raise PackedFileError(
                    f"{label}: {entry.name[:200]!r} begins at byte {entry.offset}, not after byte {end}"
                )
            end = entry.offset + entry.nbytes
        if end != len(data):
            raise PackedFileError(f"{label}: the weights end at byte {end} of {len(data)}")
        return header

    @classmethod
    def _of(cls, fields: Any) -> Header:
        """Raises KeyError, TypeError or ValueError for values of other kinds."""
        if not isinstance(fields, dict) or not isinstance(fields["entries"], list):
            raise TypeError("no object with entries")
        entries = tuple(_entry(*row) for row in fields["entries"])
        layout, file_size = (_size(fields[name]) for name in ("layout", "file_size"))
        model, plan = (_digest(fields[name]) for name in ("model", "plan"))
        return cls(model, plan, layout, file_size, _text(fields["model_path"]), entries)


def checked_text(data: memoryview, label: str) -> tuple[bytes, int]:
    """The header's JSON, whose checksum is right, and where weights begin. Raises PackedFileError."""
    if len(data) < FIXED_BYTES or bytes(data[: len(MAGIC)]) != MAGIC:
        raise PackedFileError(f"{label}: this is no file of packed weights; `oxillama pack MODEL OUT` makes one")
    version, length = (int.from_bytes(data[at : at + 4], "little") for at in (len(MAGIC), len(MAGIC) + 4))
    if version != VERSION:
        raise PackedFileError(
            f"{label}: version {version} of packed weights; this build reads {VERSION}: pack it again"
        )
    if not 2 <= length <= min(MAX_JSON, len(data) - FIXED_BYTES):
        raise PackedFileError(f"{label}: a header of {length} bytes in a file of {len(data)}: it is cut off or damaged")
    text = bytes(data[FIXED_BYTES : FIXED_BYTES + length])
    if blake3(text).digest() != bytes(data[FIXED_BYTES - DIGEST_BYTES : FIXED_BYTES]):
        raise PackedFileError(f"{label}: the header's checksum is wrong: the file is damaged")
    return text, aligned(FIXED_BYTES + length, DATA_ALIGNMENT)


def placed(header: Header) -> Header:
    """The header with offsets and the file's size set.

    How long the JSON is and where weights begin depend on each other: both are found again until nothing changes.
    """
    while True:
        start = end = len(header.encoded())
        entries = []
        for entry in header.entries:
            entries.append(replace(entry, offset=aligned(end, ALIGNMENT)))
            end = entries[-1].offset + entry.nbytes
        header = replace(header, entries=tuple(entries), file_size=end)
        if len(header.encoded()) == start:
            return header


def aligned(n: int, step: int) -> int:
    return -(-n // step) * step


def padded(data: bytes, step: int) -> bytes:
    return data + bytes(aligned(len(data), step) - len(data))


def _entry(name: Any, type: Any, shape: Any, panels: Any, nbytes: Any, offset: Any, digest: Any) -> Entry:
    if not isinstance(shape, list) or not 2 <= len(shape) <= 3 or not isinstance(panels, bool):
        raise TypeError(f"the entry {name!r:.100} has no shape")
    sizes = tuple(_size(n) for n in shape)
    return Entry(_text(name), _text(type), sizes, panels, _size(nbytes), _size(offset), _digest(digest))


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_SIZE:
        raise ValueError(f"{value!r:.100} is no size")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    return value


def _digest(value: Any) -> bytes:
    digest = bytes.fromhex(_text(value))
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"{value!r:.100} is no digest")
    return digest


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
