"""Notes of digests: what was read in full once is known again by its stamp, and not read for it a second time.

A stamp is the file's device, inode, size, times of modification and of change, and 64 samples spread over it. Writing
to a file, or setting its times, changes the time of change, which no program can set. The samples tell files of images
apart whose times all are the same. What the hardware does to bytes below the file system is for that to notice, or for
`oxillama pack --verify`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama._util.trust import folder_fault
from oxillama.errors import ModelFileError
from oxillama.gguf import GGUFFile
from oxillama.gguf.pages import release_pages
from oxillama.gguf.source import FileSource
from oxillama.models.packed.layout import DIGEST_BYTES

__all__ = ["Notes", "digests", "make_private", "model_digest", "stamp_of"]

N_SAMPLES = 64
SAMPLE_BYTES = 4096
PIECE_BYTES = 16 << 20
# A file that was changed so short a time ago can change again within the same tick of its file system's clock.
TICK_NS = 100_000_000
COARSE_TICK_NS = 2_000_000_000  # of file systems with whole seconds
LIFETIME = 90 * 86400  # seconds after which a note that nothing asked for is dropped

_NAME = re.compile(r"[0-9a-f]{40}|\.[0-9a-f]{40}\.[0-9a-f]{12}\.tmp")  # of a note, and of one that is being written


def stamp_of(source: FileSource) -> str:
    """Stamp that an open file is known by, in hexadecimal. Raises ModelFileError if it can't be read."""
    info, h = os.fstat(source.fd), blake3()
    h.update(repr((info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)).encode())
    n = min(SAMPLE_BYTES, source.size)
    sample = np.empty(n, np.uint8)
    for i in range(N_SAMPLES):
        source.read((source.size - n) * i // (N_SAMPLES - 1), sample)
        h.update(cast(Any, sample))
    return h.hexdigest()[:40]


def settled(source: FileSource) -> bool:
    """Whether another change of an open file would change its time, too."""
    changed = os.fstat(source.fd).st_ctime_ns
    return time.time_ns() - changed > (TICK_NS if changed % 10**9 else COARSE_TICK_NS)


def digests(parts: Sequence[NDArray[np.uint8]], num_threads: int) -> list[bytes]:
    """BLAKE3 of each part, by several threads.

    Not by those of BLAKE3 itself: its pool would be missing in a forked child, which would wait for it for ever.
    """

    def one(part: NDArray[np.uint8]) -> bytes:
        found = blake3(cast(Any, part)).digest()
        release_pages(part)
        return found

    try:
        with ThreadPoolExecutor(max(1, num_threads), "oxillama-digest") as pool:
            return list(pool.map(one, parts))
    except RuntimeError:  # no thread can start
        return list(map(one, parts))


def whole_digest(data: NDArray[np.uint8], num_threads: int) -> bytes:
    """BLAKE3 of the digests of pieces of 16 MB."""
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    return blake3(b"".join(digests(pieces, num_threads))).digest()


def make_private(folder: Path) -> None:
    """Makes a folder, and those above it that aren't there, for its user alone. Raises OSError."""
    for place in (*reversed(folder.parents), folder):
        if not place.exists():  # those that are there may be on a file system that can't be written
            place.mkdir(mode=0o700, exist_ok=True)


class Notes:
    """Digests by stamp, a small file each in a folder; without a folder that can be written, none are kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, stamp: str) -> bytes | None:
        """The digest noted for a stamp."""
        if self._folder is None:
            return None
        path = self._folder / stamp
        try:
            if not self._is_private():
                return None
            found = bytes.fromhex(path.read_text("ascii"))
            os.utime(path)
        except (OSError, ValueError):
            return None
        return found if len(found) == DIGEST_BYTES else None

    def _is_private(self) -> bool:
        """Whether no other user can write notes: of one that is made up, another file would be taken for known. Raises
        OSError."""
        assert self._folder is not None
        return folder_fault(self._folder) is None and folder_fault(self._folder.parent) is None

    def keep(self, stamp: str, digest: bytes) -> None:
        """Notes a digest, if the folder can be written."""
        if self._folder is None:
            return
        temporary = self._folder / f".{stamp}.{os.urandom(6).hex()}.tmp"
        try:
            make_private(self._folder)
            if not self._is_private():
                return
            temporary.write_text(digest.hex(), "ascii")
            os.replace(temporary, self._folder / stamp)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def known(self, source: FileSource, digest: Callable[[], bytes]) -> bytes:
        """The digest noted for an open file, or else `digest()`, which is noted unless the file is too new.

        Raises ModelFileError if the file was changed meanwhile, and what `digest` raises.
        """
        stamp = stamp_of(source)
        found = self.find(stamp)
        if found is not None:
            return found
        is_settled = settled(source)
        with source.unchanged():
            found = digest()
        if stamp_of(source) != stamp:
            raise ModelFileError(f"{source.path}: the file was changed while it was read")
        if is_settled:
            self.keep(stamp, found)
        return found

    def clear(self) -> None:
        """Drops all notes."""
        self.prune(-1.0)

    def prune(self, lifetime: float = LIFETIME) -> None:
        """Drops notes that nothing asked for in a long time, and what killed processes left of some."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            for path in list(self._folder.iterdir()):
                if not _NAME.fullmatch(path.name):
                    continue  # the folder may be a user's own: OXILLAMA_CACHE=~ makes it ~/notes
                with contextlib.suppress(OSError):
                    info = path.lstat()
                    if stat.S_ISREG(info.st_mode) and time.time() - info.st_mtime > lifetime:
                        path.unlink()


def model_digest(file: GGUFFile, notes: Notes, num_threads: int) -> bytes:
    """Digest of all bytes of a model's files: read in full unless their stamps are known. Raises ModelFileError."""
    h = blake3()
    for shard in file.shards:
        data = shard.data
        if shard.source is None:
            h.update(whole_digest(data, num_threads))
        else:
            h.update(notes.known(shard.source, lambda data=data: whole_digest(data, num_threads)))  # type: ignore[misc]
    return h.digest()
