"""Files that are read several times and must be the same each time."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from oxillama.errors import ConfigError

__all__ = ["SameFile", "check_regular", "kind_of"]

_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFLNK: "a symbolic link", stat.S_IFREG: "a file",
}  # fmt: skip


def kind_of(found: os.stat_result) -> str:
    """Name for the kind of a file: "a file", "a folder", "a pipe"."""
    return _KINDS.get(stat.S_IFMT(found.st_mode), "no file")


def check_regular(path: str, found: os.stat_result) -> None:
    """Raises ConfigError for anything but a regular file: a pipe can't be read twice, and a device may have no end."""
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is {kind_of(found)}: give the name of a file, which is read more than once")


class SameFile:
    """A file that is read several times and must be the same each time, by its number, size and time of change."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._known: tuple[int, ...] | None = None

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file, open. Raises OSError, and ConfigError if it is no file, or changed since it was opened first."""
        with open(self.path, "rb", opener=_without_waiting) as file:
            self.check(os.fstat(file.fileno()))
            yield file
            self.check(os.fstat(file.fileno()))

    def check_path(self) -> None:
        """Raises ConfigError if what has its name now isn't what the file was at first; OSError."""
        self.check(os.stat(self.path))

    def check(self, found: os.stat_result) -> None:
        """Raises ConfigError if this is no file, or isn't what the file was at first."""
        check_regular(self.path, found)
        stamp = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        self._known = self._known or stamp
        if stamp != self._known:
            raise ConfigError(
                f"{self.path} changed while it was read: the same command goes on, and computes anew what changed"
            )


def _without_waiting(path: str, flags: int) -> int:
    """A descriptor of a file. Raises OSError, ConfigError for anything else; it waits for no pipe's writer."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
