"""Writing a file so that nobody ever sees half of it."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from oxillama.errors import ConfigError
from oxillama.interrupt import DeferredInterrupt

__all__ = ["atomic_file", "remove_leftovers", "sync_folder"]

TEMPORARY = re.compile(r"\.(.*)\.[0-9a-f]{12}\.tmp", re.DOTALL)
# Of file systems that can't flush a folder, and of folders that may be written to and not be read.
NOT_TO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name ``path`` when the block ends, and vanishes if it raises.

    It is written beside ``path`` and flushed to disk before it is renamed. A file that had the name before stays whole
    until then, and for those who have it mapped, after. A symbolic link keeps pointing to the same place. What was left
    by a process that was killed while it wrote ``path`` is removed.

    Raises:
        ConfigError: there is no such folder, or ``path`` is one, or a device, a pipe or a socket: it would be replaced.
        OSError: the system refuses to write; with ``path`` as its file name.
    """
    target = Path(os.path.realpath(path))
    with _named(path):
        _check_target(path, target)
        remove_leftovers(target.parent, target.name)
        made: list[tuple[Path, BinaryIO]] = []
        try:
            with DeferredInterrupt():  # nothing comes between a file and who removes it
                made.append(_new_file(target))
            temporary, f = made[0]
            yield f
            f.flush()
            os.fsync(f.fileno())
            os.replace(temporary, target)
        except BaseException:
            with DeferredInterrupt():
                for temporary, f in made:
                    temporary.unlink(missing_ok=True)
                    _close(f)
            raise
        _close(f)
        try:
            sync_folder(target.parent)
        except OSError as e:
            raise OSError(e.errno, f"it has its name, but whether that is on disk is not known: {e.strerror}") from e


def _new_file(target: Path) -> tuple[Path, BinaryIO]:
    """A file beside the target, which is locked as long as it is open: who finds it knows that somebody writes it."""
    while True:
        temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
        # Not tempfile: its files can be read by their owner alone, whatever the umask.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
                return temporary, os.fdopen(descriptor, "wb")
        except BaseException:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        os.close(descriptor)  # somebody took it for a leftover, in the moment before it was locked


def _lock(descriptor: int) -> bool | None:
    """Whether it is ours now; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _close(f: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # what counts was flushed before, or is removed
        f.close()


def remove_leftovers(folder: Path, name: str | None = None) -> int:
    """Removes files that `atomic_file` began, for a name or for any, and whose writers are no more: bytes freed.

    What can't be removed stays: it is in nobody's way.
    """
    freed = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = TEMPORARY.fullmatch(entry.name)
            if match and (name is None or match[1] == name[:100]):
                freed += _remove_leftover(Path(entry.path))
    return freed


def _remove_leftover(path: Path) -> int:
    with contextlib.suppress(OSError), DeferredInterrupt():
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if _lock(descriptor):
                path.unlink()
                return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return 0


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to disk, where the file system can. Raises OSError if that fails."""
    try:
        with DeferredInterrupt():
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as e:
        if e.errno not in NOT_TO_SYNC:
            raise


def _check_target(path: Path, target: Path) -> None:
    if not target.parent.is_dir():
        raise ConfigError(f"{path}: can't be written, there is no folder {target.parent}")
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path}: can't be written, this is a directory")
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: can't be written, this is a device, a pipe or a socket: give the name of a file")


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the system that name no file, or the temporary one, name ``path`` instead."""
    try:
        yield
    except OSError as e:
        own = e.filename is None or TEMPORARY.fullmatch(os.path.basename(os.fsdecode(e.filename)))
        if e.errno is None or not own:
            raise
        raise OSError(e.errno, e.strerror, str(path)) from e
