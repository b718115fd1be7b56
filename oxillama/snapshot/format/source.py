"""Sources of snapshot bytes: files, mappings and buffers."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, cast

import numpy as np

from oxillama._util.places import Place
from oxillama._util.signals import DeferredInterrupt
from oxillama.errors import ConfigError, SnapshotDamagedError, SnapshotFileError
from oxillama.kernels.files import Descriptor
from oxillama.snapshot.format.layout import ALIGNMENT

__all__ = [
    "FileSource",
    "MemorySource",
    "Source",
    "open_source",
]


class MemorySource:
    """Snapshot in memory. label: its name, for messages. folder: that of the files it refers to; None for bytes."""

    folder: Path | None = None

    def __init__(self, data: bytes | bytearray | memoryview, label: str = "<memory>") -> None:
        self._data = memoryview(data).cast("B")
        self.label = label
        self.n_bytes = len(self._data)

    def reserve(self, n: int) -> None:
        """Does nothing: the bytes are in memory."""

    def read(self, offset: int, n: int) -> memoryview:
        """n bytes from an offset. Raises SnapshotDamagedError if the source ends before."""
        if offset + n > self.n_bytes:
            raise SnapshotDamagedError(f"{self.label}: it ends after {self.n_bytes} bytes")
        return self._data[offset : offset + n]

    def close(self) -> None:
        pass


class FileSource:
    """Snapshot in a file, read and not mapped: a file cut short by another process is an error then, not SIGBUS."""

    def __init__(self, path: Path, parent: int | None = None, *, label: str | None = None) -> None:
        """parent: descriptor of the folder that path is relative to. label: the file's in messages, by default path."""
        self.label = str(path) if label is None else label
        self._open: Descriptor | None = None
        self._reserved = np.empty(0, np.uint8)
        known = parent is None and "\0" not in str(path)
        self.folder: Path | None = Path(os.path.realpath(path)).parent if known else None
        try:
            self._check(os.stat(path, dir_fd=parent))  # before opening, which has side effects on a device
            with DeferredInterrupt():  # no interrupt between opening the file and the note to close it
                # O_NONBLOCK: opening a pipe would wait for a writer.
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
                self._open = Descriptor(os.open(path, flags, dir_fd=parent))
            self._descriptor = self._open.fd
            info = os.fstat(self._descriptor)
            self._check(info)
        except SnapshotFileError:
            self.close()
            raise
        except (OSError, ValueError) as error:
            self.close()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise SnapshotFileError(f"{self.label!r}: the snapshot can't be read: {reason}") from error
        self.n_bytes = info.st_size

    def _check(self, info: os.stat_result) -> None:
        if not stat.S_ISREG(info.st_mode):
            raise SnapshotFileError(f"{self.label}: this is no regular file, and so no snapshot")

    def read(self, offset: int, n: int) -> memoryview:
        if offset + n > self.n_bytes:
            raise SnapshotDamagedError(f"{self.label}: the file ends after {self.n_bytes} bytes")
        found = self._memory(n)
        done = 0
        while done < n:
            try:
                got = os.preadv(self._descriptor, [found[done:]], offset + done)
            except OSError as error:
                raise SnapshotFileError(f"{self.label}: can't be read: {error.strerror}") from error
            if not got:
                raise SnapshotDamagedError(f"{self.label}: the file ended while it was read, after {offset + done}")
            done += got
        return found

    def reserve(self, n: int) -> None:
        """Allocates memory for the next reads, n bytes together: far fewer page faults than one allocation a read."""
        self._reserved = np.empty(min(n, self.n_bytes), np.uint8)

    def _memory(self, n: int) -> memoryview:
        # A numpy array, so that it can be viewed as arrays of any type.
        room = self._reserved
        if n > len(room):
            return memoryview(cast(Any, np.empty(n, np.uint8)))
        self._reserved = room[-(-n // ALIGNMENT) * ALIGNMENT :]
        return memoryview(cast(Any, room[:n]))

    def close(self) -> None:
        if self._open is not None:
            self._open.close()


Source = MemorySource | FileSource


def open_source(place: Place | Source) -> Source:
    """A source of a path or of bytes; a source itself is returned as it is.

    Raises SnapshotFileError if the file can't be opened, ConfigError for another type.
    """
    if isinstance(place, MemorySource | FileSource):
        return place
    if isinstance(place, bytes | bytearray | memoryview):
        return MemorySource(place)
    if not isinstance(place, str | os.PathLike):
        raise ConfigError(f"a snapshot is a path or bytes, not {type(place).__name__}")
    return FileSource(Path(os.fspath(place)))
