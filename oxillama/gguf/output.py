"""Writing a file so that nobody ever sees half of it."""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from oxillama.errors import ConfigError

__all__ = ["atomic_file"]


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name ``path`` when the block ends, and vanishes if it raises.

    It is written beside ``path`` and flushed to disk before it is renamed. A file that had the name before stays whole
    until then, and for those who have it mapped, after. A symbolic link keeps pointing to the same place.

    Raises:
        ConfigError: there is no such folder, or ``path`` is one, or a device, a pipe or a socket: it would be replaced.
        OSError: the system refuses to write; with ``path`` as its file name.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    with _named(path, temporary):
        _check_target(path, target)
        # Not tempfile: its files can be read by their owner alone, whatever the umask.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as f:
                yield f
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    # The rename itself lasts once its folder is on disk; some file systems can't flush a folder.
    with contextlib.suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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
def _named(path: Path, temporary: Path) -> Iterator[None]:
    """Errors of the system that name no file, or the temporary one, name ``path`` instead."""
    try:
        yield
    except OSError as e:
        if e.errno is None or e.filename not in (None, str(temporary), temporary):
            raise
        raise OSError(e.errno, e.strerror, str(path)) from e
