"""File source: an open file for repeated reads, with detection of changes."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from oxillama._util.signals import DeferredInterrupt
from oxillama.errors import ConfigError, ModelFileError, OxiLlamaError
from oxillama.gguf._mapping import FileState, Mapping
from oxillama.kernels.files import Descriptor, can_tell

__all__ = ["DIRECT_SLACK", "FileSource"]

BLOCK = 4096  # of direct reads: no disk has larger ones
DIRECT_SLACK = 2 * BLOCK
REMEDY = "To replace a file that is in use, rename the new one over it."


class FileSource(FileState):
    """An open file whose bytes are read on demand.

    Another file under the same name changes nothing, since the open one is kept. The file itself is taken to be changed
    if its size or modification time has changed since it was opened: every read checks this after it has its bytes, so
    that bytes written before the check are never used. Users of mapped bytes must check too (`check`, `unchanged`):
    these are zeros where they couldn't be read.
    """

    __slots__ = ("__weakref__", "_changed", "_direct", "_open", "path")

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file can't be opened, ModelFileError unless it is a regular file that isn't empty."""
        info = path.stat()  # before opening, which would wait on a pipe
        if not stat.S_ISREG(info.st_mode):
            kind = "a directory" if stat.S_ISDIR(info.st_mode) else "not a regular file"
            raise ModelFileError(f"{path}: this is {kind}; the path of a GGUF file is needed")
        self.path = path
        with DeferredInterrupt():  # no interrupt between opening the file and the note to close it
            self._open = [Descriptor(os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))]
        super().__init__(self._open[0].fd)
        self._changed: str | None = None
        self._direct: int | None = None

    def map(self) -> NDArray[np.uint8]:
        """The file's bytes, read-only; mapped as long as the array or the source lives. Raises OSError."""
        self.mapping = Mapping(self.fd, self.size)
        return np.frombuffer(cast(Any, self.mapping), np.uint8)

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raises ModelFileError after a block that uses mapped bytes, or for its errors, if the file was changed."""
        self.watch()
        try:
            yield
        except (OxiLlamaError, OSError):
            self.check()  # unexpected bytes may be the cause of any error
            raise
        self.check()

    def _report(self) -> None:
        """Raises ModelFileError with what has changed; nothing if `check` was mistaken."""
        try:
            info = os.fstat(self.fd)
        except OSError as error:
            raise self.failed(error.errno or 0) from error
        if self._changed is None and info.st_size != self.size:
            self._changed = f"had {self.size} bytes when it was opened and has {info.st_size} now"
        elif self._changed is None and info.st_mtime_ns != self.time:
            self._changed = "was written to since it was opened"
        elif self._changed is None and self.mapping is not None and self.mapping.missing:
            self._changed = "could not be read where it is mapped"
        if self._changed is not None:
            raise ModelFileError(f"{self.path}: the file {self._changed}; load the model again. {REMEDY}")

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        """Fills ``out`` with the bytes from ``offset`` on.

        Raises ModelFileError for a file that can't be read, ends too early, or was changed.
        """
        self._read(self.fd, offset, out.data, len(out))
        self.check()

    def expect(self, offset: int, n_bytes: int) -> None:
        """Advises the system to read bytes that will be needed, where it can be advised."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # the read itself reports the error
                os.posix_fadvise(self.fd, offset, n_bytes, os.POSIX_FADV_WILLNEED)

    def read_direct(self, offset: int, n_bytes: int, out: NDArray[np.uint8]) -> int:
        """Reads past the page cache. Returns the offset in ``out`` at which the bytes begin.

        ``out`` is aligned to a page of memory, and has room for ``DIRECT_SLACK`` more, since whole blocks are read.
        """
        if self._direct is None or self._direct < 0:
            self._direct = self.open_direct()
        shift = offset % BLOCK
        wanted = shift + n_bytes
        self._read(self._direct, offset - shift, out.data[: -(-wanted // BLOCK) * BLOCK], wanted)
        self.check()
        return shift

    @property
    def can_pass_cache(self) -> bool:
        """Whether direct reads work, and the page cache can be probed for pages that don't need them."""
        if self._direct is None:
            try:
                self._direct = self.open_direct() if can_tell(self.fd) else -1
            except ConfigError:
                self._direct = -1
        return self._direct >= 0

    def pass_cache(self, offset: int, n_bytes: int, out: NDArray[np.uint8]) -> int | None:
        """`read_direct`; None if the disk refuses it, as with larger blocks: `can_pass_cache` is False from then on."""
        try:
            return self.read_direct(offset, n_bytes, out)
        except ModelFileError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._direct = -1
            return None

    def open_direct(self) -> int:
        """A descriptor of the same file for direct reads. Raises ConfigError if system or file system have none."""
        try:
            with DeferredInterrupt():
                fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
                self._open.append(Descriptor(fd))
        except (OSError, AttributeError) as error:
            raise ConfigError(
                f"offload.direct must be left out: {self.path} can't be read past the page cache: {error}"
            ) from None
        return fd

    def _read(self, fd: int, offset: int, out: memoryview, n_wanted: int) -> None:
        done = 0
        while done < n_wanted:
            try:
                n = os.preadv(fd, [out[done:]], offset + done)
            except OSError as error:
                raise self.failed(error.errno or 0) from error
            if not n:
                raise self.failed(-1)
            done += n

    def failed(self, number: int) -> ModelFileError:
        """The error for a read that failed with this errno; -1: the file ends too early."""
        if number >= 0:
            return ModelFileError(f"{self.path}: the file can't be read any more: {os.strerror(number)}")
        try:
            self.check()
        except ModelFileError as error:
            return error
        return ModelFileError(f"{self.path}: the file ends too early. {REMEDY}")
