"""BLAKE3 of what is written or read meanwhile, by a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama.interrupt import DeferredInterrupt

__all__ = ["Bytes", "Hashing", "digest_of"]

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
