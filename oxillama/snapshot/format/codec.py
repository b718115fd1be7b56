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


Bytes = NDArray[np.uint8]

LONG = 1 << 16  # bytes: fewer are hashed before a thread has woken up
MAX_WAITING = 8  # jobs, each of which keeps what it is of in memory


def digest_of(pieces: Sequence[Bytes]) -> bytes:
    """Of pieces, one after another."""
    h = blake3()
    for piece in pieces:
        h.update(cast(Any, piece))
    return h.digest()


class Hashing:
    """Digests of data that somebody else uses at the same time; nobody may change it until they are known.

    A context manager: its thread has ended after the block.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "oxillama-hash")
        self._waiting: deque[Future[bytes]] = deque()

    def __call__(self, pieces: Sequence[Bytes]) -> Callable[[], bytes]:
        """What gives the digest of pieces, one after another, when it is called."""
        if sum(piece.nbytes for piece in pieces) < LONG:
            return _known(digest_of(pieces))
        if len(self._waiting) == MAX_WAITING:
            self._waiting.popleft().exception()
        try:
            with DeferredInterrupt():  # nothing comes between the pool's thread and who waits for its end
                job = self._pool.submit(digest_of, pieces)
        except RuntimeError:  # there can be no thread: the interpreter ends, or the system has too many
            return _known(digest_of(pieces))
        self._waiting.append(job)
        return job.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def _known(digest: bytes) -> Callable[[], bytes]:
    return lambda: digest
