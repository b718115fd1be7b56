"""Compression and hashing of snapshot sections."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, Self, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama._util.signals import DeferredInterrupt
from oxillama.errors import ConfigError, SnapshotDamagedError, SnapshotFormatError

__all__ = [
    "Bytes",
    "Hashing",
    "check_available",
    "compress",
    "decompress",
    "digest_of",
]

LEVEL = 3


@cache
def _library() -> tuple[str, Any]:
    # Cached: at each save, Python would search all its folders again for a module that is missing.
    for name in ("compression.zstd", "zstandard"):
        try:
            return name, importlib.import_module(name)
        except ImportError:
            continue
    return "", None


def check_available() -> None:
    """Raises ConfigError without zstd."""
    if not _library()[0]:
        raise ConfigError("compress=True needs zstd: Python 3.14, or `pip install zstandard`")


def compress(data: memoryview) -> bytes:
    """One frame."""
    check_available()
    name, library = _library()
    found: bytes = library.compress(data, LEVEL) if name != "zstandard" else _compressor(library).compress(data)
    return found


def _compressor(library: Any) -> Any:
    return library.ZstdCompressor(level=LEVEL)


def decompress(data: memoryview, n_bytes: int, label: str) -> bytes:
    """The n_bytes of a frame; never writes more than that to memory.

    Raises SnapshotFormatError without zstd, SnapshotDamagedError if the frame holds another number of bytes.
    """
    name, library = _library()
    if not name:
        raise SnapshotFormatError(f"{label} is compressed: zstd is needed, `pip install zstandard`")
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


Bytes = NDArray[np.uint8]

LONG = 1 << 16  # bytes: fewer are hashed here sooner than a thread wakes up
MAX_WAITING = 8  # jobs, each of which keeps its data in memory


def digest_of(pieces: Sequence[Bytes]) -> bytes:
    """Digest of pieces, one after another."""
    h = blake3()
    for piece in pieces:
        h.update(cast(Any, piece))
    return h.digest()


class Hashing:
    """Digests computed in a thread of its own. The caller may use the data meanwhile, but not change it.

    A context manager: its thread has ended after the block.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "oxillama-hash")
        self._waiting: deque[Future[bytes]] = deque()

    def __call__(self, pieces: Sequence[Bytes]) -> Callable[[], bytes]:
        """A function that returns the digest of pieces, one after another."""
        if sum(piece.nbytes for piece in pieces) < LONG:
            return _known(digest_of(pieces))
        if len(self._waiting) == MAX_WAITING:
            self._waiting.popleft().exception()
        try:
            with DeferredInterrupt():  # no interrupt between the start of the pool's thread and the note to join it
                job = self._pool.submit(digest_of, pieces)
        except RuntimeError:  # no thread can start: the interpreter ends, or the system has too many
            return _known(digest_of(pieces))
        self._waiting.append(job)
        return job.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def _known(digest: bytes) -> Callable[[], bytes]:
    return lambda: digest
