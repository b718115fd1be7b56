"""Inputs that are kept: a folder of files, and many in one as `corpus.xz`, each behind its length (u32)."""

import lzma
import struct
from pathlib import Path

__all__ = ["STORED", "pack", "stored", "unpack"]

STORED = Path(__file__).parents[1] / "data" / "fuzz"
PACKED = "corpus.xz"


def pack(inputs, path: Path):
    """Writes inputs, the smallest first."""
    parts = [struct.pack("<I", len(data)) + data for data in sorted(inputs, key=by_size)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(b"".join(parts), preset=9 | lzma.PRESET_EXTREME))


def unpack(path: Path):
    raw, at, found = lzma.decompress(path.read_bytes()), 0, []
    while at < len(raw):
        (n,) = struct.unpack_from("<I", raw, at)
        found.append(raw[at + 4 : at + 4 + n])
        at += 4 + n
    return found


def by_size(data):
    return len(data), data


def stored(folder: Path):
    """The inputs in a folder, the smallest first."""
    found = [path.read_bytes() for path in sorted(folder.glob("*")) if path.is_file() and path.name != PACKED]
    if (folder / PACKED).exists():
        found += unpack(folder / PACKED)
    return sorted(found, key=by_size)
