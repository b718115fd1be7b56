"""Key tables: what is known of each key, in an unnamed file instead of memory."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from types import TracebackType
from typing import Self

__all__ = ["KeyTable"]

KEY_BYTES = 16
FIRST_BITS = 10  # 1,024 slots
GROUP = 8  # slots that a search reads at a time
AT_A_TIME = 1 << 12  # slots that are read at a time where a table grows


class KeyTable:
    """A map from keys to values of a fixed size, whose memory doesn't grow with their number.

    It is a hash table with open addressing in a file without a name, which ends with the process. A key is known by 128
    bits of its BLAKE2b digest; its first bits are its place, so that a table that grows is read and written in order.
    """

    def __init__(self, folder: str, n_bytes: int) -> None:
        """folder: where the file is. n_bytes: of a value. Raises OSError."""
        self._folder = folder
        self._slot = KEY_BYTES + n_bytes
        self._bits = FIRST_BITS
        self._n_keys = 0
        self._file = self._made()

    def _made(self) -> FileIO:
        with tempfile.TemporaryFile(dir=self._folder, prefix=".oxillama-") as file:
            with self._named():
                file.truncate(self._slot << self._bits)  # zeros, of which a file system keeps none
            return FileIO(os.dup(file.fileno()), "r+")

    def __len__(self) -> int:
        return self._n_keys

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none. Raises OSError."""
        return self._find(_digest(key))[1]

    def put(self, key: bytes, value: bytes = b"") -> bytes | None:
        """Sets the value of a key, and returns the one that it had. Raises OSError; the value is then not changed."""
        if self._n_keys >= 1 << (self._bits - 1):  # half full
            self._grow()
        digest = _digest(key)
        place, before = self._find(digest)
        self._write(place, digest + value)
        self._n_keys += before is None
        return before

    def _find(self, digest: bytes) -> tuple[int, bytes | None]:
        """The slot of a key and its value, or the free one where it belongs and None."""
        descriptor, size, last = self._file.fileno(), self._slot, 1 << self._bits
        place = int.from_bytes(digest[:8], "big") >> (64 - self._bits)
        while True:
            data = os.pread(descriptor, GROUP * size, place * size)
            for start in range(0, len(data), size):
                found = data[start : start + KEY_BYTES]
                if found == digest:
                    return place, data[start + KEY_BYTES : start + size]
                if not any(found):
                    return place, None
                place += 1
            place %= last

    def _write(self, place: int, data: bytes) -> None:
        with self._named():
            if os.pwrite(self._file.fileno(), data, place * self._slot) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Gives errors of writing the folder's name; the file has none."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._folder) from error

    def _grow(self) -> None:
        before, bits = self._file, self._bits
        self._bits += 1
        try:
            self._file = self._made()
            for data in _slots(before.fileno(), self._slot):
                place, _ = self._find(data[:KEY_BYTES])
                self._write(place, data)
        except BaseException:
            if self._file is not before:
                self._file.close()
            self._file, self._bits = before, bits
            raise
        before.close()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=KEY_BYTES).digest()


def _slots(descriptor: int, size: int) -> Iterator[bytes]:
    """The slots of a file that are taken, in their order."""
    offset = 0
    while data := os.pread(descriptor, AT_A_TIME * size, offset):
        offset += len(data)
        for start in range(0, len(data), size):
            if any(data[start : start + KEY_BYTES]):
                yield data[start : start + size]
