"""zstd, of Python itself (3.14 and later) or of the package `zstandard`."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from oxillama.errors import ConfigError, SnapshotDamagedError, SnapshotFormatError

__all__ = ["check_available", "compress", "decompress"]

LEVEL = 3


@cache
def _library() -> tuple[str, Any]:
    # Asked once: Python would look through all its folders again for the one that isn't there, at each save.
    for name in ("compression.zstd", "zstandard"):
        try:
            return name, importlib.import_module(name)
        except ImportError:
            continue
    return "", None


def check_available() -> None:
    """Raises ConfigError where there is no zstd."""
    if not _library()[0]:
        raise ConfigError("compress=True needs zstd: Python 3.14, or `pip install oxillama[zstd]`")


def compress(data: memoryview) -> bytes:
    """One frame."""
    check_available()
    name, library = _library()
    found: bytes = library.compress(data, LEVEL) if name != "zstandard" else _compressor(library).compress(data)
    return found


def _compressor(library: Any) -> Any:
    return library.ZstdCompressor(level=LEVEL)


def decompress(data: memoryview, n_bytes: int, label: str) -> bytes:
    """The n_bytes that a frame holds; no more than that is ever written to memory.

    Raises SnapshotFormatError where there is no zstd, SnapshotDamagedError for anything else than n_bytes.
    """
    name, library = _library()
    if not name:
        raise SnapshotFormatError(f"{label} is compressed: zstd is needed, `pip install oxillama[zstd]`")
    try:
        if name == "zstandard":
            source = library.ZstdDecompressor().stream_reader(data)
            found = source.read(n_bytes + 1)
        else:
            found = library.ZstdDecompressor().decompress(data, max_length=n_bytes + 1)
    except (library.ZstdError, MemoryError) as error:
        raise SnapshotDamagedError(f"{label} can't be decompressed: {error}") from error
    if len(found) != n_bytes:
        raise SnapshotDamagedError(f"{label} holds other than the {n_bytes} bytes that its shape needs")
    return bytes(found)
