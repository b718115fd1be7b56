"""Packed file: weights mapped read-only, in the layout that kernels multiply by."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama._util.trust import owner_fault
from oxillama.errors import ModelFileError, ModelNotFoundError, PackedFileError
from oxillama.gguf.source import FileSource
from oxillama.models.packed.layout import PANEL_LAYOUT, Entry, Header
from oxillama.models.packed.notes import Notes, digests

__all__ = ["PackedFile"]


class PackedFile:
    """An open packed file, locked for sharing as long as its source lives, so that no eviction takes it.

    header: checked; no entry leads outside the file. source: what stays open, and is to be checked after the weights
    were used (`FileSource.check`).
    """

    def __init__(self, path: Path, owners: Collection[int] | None = None) -> None:
        """owners: users that may have written it, beside this one and root; None: any user may.

        Raises ModelNotFoundError if it can't be read, PackedFileError if it is none, cut off or damaged, or if others
        could have written it.
        """
        with _opening(path):
            self.source = FileSource(path)
            fault = None if owners is None else owner_fault(os.fstat(self.source.fd), owners)
            if fault is not None:
                raise PackedFileError(
                    f"{path}: packed weights are taken from no file that others could have written, and {fault}: chown "
                    "it, chmod go-w, or pack the model again"
                )
            if not self.source.size:
                raise PackedFileError(f"{path}: the file is empty")
            with contextlib.suppress(OSError):  # file systems without locks
                fcntl.flock(self.source.fd, fcntl.LOCK_SH)
            self._data = self.source.map()
        assert self.source.mapping is not None
        self.source.mapping.prefer_huge_pages()
        with self.source.unchanged():
            self.header = Header.read(memoryview(cast(Any, self._data)), str(path))

    @property
    def is_linked(self) -> bool:
        """Whether the file still has a name: what was evicted while it was opened has none."""
        return os.fstat(self.source.fd).st_nlink > 0

    def unmap(self) -> FileSource:
        """The source, of which nothing stays mapped: for pages that are read from it. The file has no `parts` then."""
        self.source.mapping = None
        self._data = np.empty(0, np.uint8)
        return self.source

    def parts(self) -> list[NDArray[np.uint8]]:
        """The bytes of all entries, read-only."""
        return [self._data[e.offset : e.offset + e.nbytes] for e in self.header.entries]

    def check_model(self, wanted: Header) -> None:
        """Raises PackedFileError unless it was made of this model, for this build."""
        found, path = self.header, self.source.path
        if found.layout != PANEL_LAYOUT:
            raise PackedFileError(
                f"{path}: panels of layout {found.layout}; this build has {PANEL_LAYOUT}: pack the model again"
            )
        if found.model != wanted.model:
            raise PackedFileError(
                f"{path}: it is of another model{f' ({found.model_path})' if found.model_path else ''}: of digest "
                f"{found.model.hex()[:16]}, and the one that is loaded has {wanted.model.hex()[:16]}; pack that one"
            )
        if found.plan != wanted.plan or list(map(_kind, found.entries)) != list(map(_kind, wanted.entries)):
            raise PackedFileError(
                f"{path}: its matrices are cut out of the model in another way: by another version, or with other "
                "overrides; pack the model again"
            )

    def verify(self, num_threads: int) -> bytes:
        """Reads all weights and compares their checksums; the header's digest. PackedFileError names what differs."""
        with self.source.unchanged():
            for entry, found in zip(self.header.entries, digests(self.parts(), num_threads), strict=True):
                if found != entry.digest:
                    raise PackedFileError(
                        f"{self.source.path}: the checksum of {entry.name[:200]!r} is wrong: the file is damaged"
                    )
        return self.digest

    def verify_once(self, notes: Notes, num_threads: int) -> None:
        """`verify`, unless a note says that this was done and nothing has been written to the file since."""
        if notes.known(self.source, lambda: self.verify(num_threads)) != self.digest:
            self.verify(num_threads)

    @property
    def digest(self) -> bytes:
        """Digest of the header, and by its checksums of all weights."""
        return blake3(self.header.encoded()).digest()


def _kind(entry: Entry) -> Sequence[object]:
    return entry.name, entry.type, entry.shape, entry.panels, entry.nbytes


@contextlib.contextmanager
def _opening(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: there is no such file; `oxillama pack MODEL {path}` makes one") from None
    except ModelFileError as error:
        raise PackedFileError(str(error).replace("GGUF file", "file of packed weights")) from None
    except PackedFileError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelNotFoundError(f"{str(path)!r}: the file can't be read: {reason}") from error
