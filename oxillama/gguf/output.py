"""Atomic files: written completely or not at all, in folders held open by descriptor."""

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from oxillama._util.signals import DeferredInterrupt
from oxillama._util.trust import link_fault
from oxillama.errors import ConfigError

__all__ = [
    "atomic_file",
    "atomic_in",
    "check_not_source",
    "names_in",
    "open_folder",
    "remove_file",
    "remove_leftovers",
    "sync_folder",
]

TEMPORARY = re.compile(r"\.(.{1,100})\.[0-9a-f]{12}\.tmp", re.DOTALL)
# Errors of file systems that can't flush a folder, and of folders with write but no read permission.
NOT_TO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF)


@contextlib.contextmanager
def open_folder(path: str | os.PathLike[str], parent: int | None = None) -> Iterator[int]:
    """The descriptor of a folder, which stays the same folder even if its name becomes another's.

    parent: descriptor of its parent folder. Raises OSError, also for a symbolic link (ENOTDIR or ELOOP).
    """
    owned = list[int]()
    try:
        try:
            with DeferredInterrupt():  # no interrupt between opening the folder and the note to close it
                owned.append(_descriptor(path, parent))
            yield owned[0]
        finally:
            _release(owned)
    except BaseException:  # perhaps a signal's, before the release started
        _release(owned)
        raise


def _descriptor(path: str | os.PathLike[str], parent: int | None) -> int:
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDONLY | flags, dir_fd=parent)
    except PermissionError:
        if not hasattr(os, "O_PATH"):
            raise
        return os.open(path, os.O_PATH | flags, dir_fd=parent)  # for folders with write but no read permission


def _release(owned: list[int]) -> None:
    with DeferredInterrupt():
        while owned:
            with contextlib.suppress(OSError):
                os.close(owned.pop())


def names_in(folder: int) -> list[str]:
    """Names in an open folder, sorted. Raises OSError."""
    # With a descriptor of its own: duplicates share the position in the listing, and a failing rewind is silent.
    with open_folder(".", folder) as again:
        return sorted(os.listdir(again))


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name ``path`` when the block ends, and is removed if the block raises.

    It is written beside ``path`` and flushed to disk before it is renamed. A file that had the name before stays intact
    until then, and for processes that have it mapped, after. A symbolic link keeps pointing to the same place. The
    temporary file of a process that was killed while writing ``path`` is removed.

    Raises:
        ConfigError: there is no such folder; ``path`` is one, or a device, a pipe or a socket, which would be
            replaced; or a link that another user made where others can write.
        OSError: the system refuses to write; with ``path`` as its file name.
    """
    fault = link_fault(path)
    if fault is not None:
        raise ConfigError(f"{path}: can't be written, {fault}: give the name of a file")
    target = Path(os.path.realpath(path))
    with _named(path, (target.name, str(target.parent))):
        if not target.parent.is_dir():
            raise ConfigError(f"{path}: can't be written, there is no folder {target.parent}")
        with open_folder(target.parent) as folder, atomic_in(folder, target.name, path) as f:
            yield f


@contextlib.contextmanager
def atomic_in(folder: int, name: str, path: Path) -> Iterator[BinaryIO]:
    """`atomic_file` for a name in an open folder; a symbolic link of that name is an error. path: for messages."""
    _check_target(folder, name, path)
    remove_leftovers(folder, name)
    made: list[tuple[str, BinaryIO]] = []
    try:
        with DeferredInterrupt():  # no interrupt between creating the file and the note to remove it
            made.append(_new_file(folder, name))
        temporary, f = made[0]
        yield f
        f.flush()
        os.fsync(f.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with DeferredInterrupt():
            for temporary, f in made:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                _close(f)
        raise
    _close(f)
    try:
        sync_folder(folder)
    except OSError as e:
        raise OSError(e.errno, f"it has its name, but whether that is on disk is not known: {e.strerror}") from e


def check_not_source(place: str | os.PathLike[str], *sources: str | os.PathLike[str] | None) -> None:
    """Raises ConfigError if a file that will be written is one of the sources, by whatever name or link."""
    if os.path.exists(place):
        for source in sources:
            if source is not None and os.path.exists(source) and os.path.samefile(source, place):
                raise ConfigError(f"{os.fspath(place)} is the source itself: write to another file")


def _new_file(folder: int, name: str) -> tuple[str, BinaryIO]:
    """A file beside the target, locked as long as it is open, which shows other processes that it is being written."""
    while True:
        temporary = f".{name[:100]}.{os.urandom(6).hex()}.tmp"
        # Not tempfile, whose files only their owner can read, whatever the umask.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
                return temporary, os.fdopen(descriptor, "wb")
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        os.close(descriptor)  # another process took it for a leftover, just before it was locked


def _lock(descriptor: int) -> bool | None:
    """Tries to lock a file: whether it is locked now; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _close(f: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # the data were flushed before, or the file is removed
        f.close()


def remove_leftovers(folder: int, name: str | re.Pattern[str] = re.compile(".*", re.DOTALL)) -> int:
    """Removes temporary files of `atomic_file`, for a name or names of a pattern, whose writers have ended. Returns the
    number of bytes freed.

    folder: descriptor of the folder. Files that can't be removed stay, and anything but regular files of one name.
    """
    freed = 0
    with contextlib.suppress(OSError):
        for entry in names_in(folder):
            match = TEMPORARY.fullmatch(entry)
            if match and (match[1] == name[:100] if isinstance(name, str) else name.fullmatch(match[1])):
                freed += _remove_leftover(folder, entry)
    return freed


def _remove_leftover(folder: int, name: str) -> int:
    with contextlib.suppress(OSError), DeferredInterrupt():
        if not _is_own(os.stat(name, dir_fd=folder, follow_symlinks=False)):  # a device isn't even opened
            return 0
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder)
        try:
            if _lock(descriptor):
                return remove_file(folder, name, os.fstat(descriptor)) or 0
        finally:
            os.close(descriptor)
    return 0


def remove_file(folder: int, name: str, known: os.stat_result | None = None) -> int | None:
    """Removes a regular file without a second name from an open folder, and returns the bytes freed; None for anything
    else, which stays, also for another file than the known one. Raises OSError."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not _is_own(found) or (known is not None and not os.path.samestat(found, known)):
        return None
    os.unlink(name, dir_fd=folder)
    return found.st_size


def _is_own(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_nlink == 1


def sync_folder(folder: int) -> None:
    """Flushes the names in an open folder to disk, where the file system can. Raises OSError if that fails."""
    try:
        os.fsync(folder)
    except OSError as e:
        if e.errno not in NOT_TO_SYNC:
            raise


def _check_target(folder: int, name: str, path: Path) -> None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path}: can't be written, this is a directory")
    if not stat.S_ISREG(mode):
        what = "a symbolic link" if stat.S_ISLNK(mode) else "a device, a pipe or a socket"
        raise ConfigError(f"{path}: can't be written, this is {what}: give the name of a file")


@contextlib.contextmanager
def _named(path: Path, names: tuple[str, ...]) -> Iterator[None]:
    """Makes system errors that name no file, the temporary file or one of `names`, name ``path`` instead."""
    try:
        yield
    except OSError as e:
        name = e.filename
        own = not isinstance(name, str | bytes) or TEMPORARY.fullmatch(os.path.basename(os.fsdecode(name)))
        if e.errno is None or not (own or name in names):
            raise
        raise OSError(e.errno, e.strerror, str(path)) from e
