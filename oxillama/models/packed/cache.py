"""Cache of packed files: a folder with a size limit, from which the least recently used go."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oxillama._util.sizes import read_size
from oxillama.errors import ConfigError, LoadError
from oxillama.models.packed.file import PackedFile
from oxillama.models.packed.notes import Notes

__all__ = ["Cache", "Cached"]

SUFFIX = ".oxpack"
LIMIT = 64 << 30  # bytes of all packed files together
POLL_SECONDS = 0.05
PATIENCE = 5.0  # seconds after which waiting for another process is logged

_NAME = re.compile(r"[0-9a-f]{40}" + re.escape(SUFFIX))
_log = logging.getLogger("oxillama")


@dataclass(frozen=True)
class Cached:
    """A file of the cache. used: when it was last loaded, Unix seconds. model: the path that it was made of, or what is
    wrong with the file."""

    path: Path
    n_bytes: int
    used: float
    in_use: bool
    model: str


class Cache:
    """The packed files of one folder. Processes share it without talking: by names, locks of files and renames.

    KEY.oxpack is a packed file, KEY.used is touched whenever it is loaded, KEY.lock is locked while it is made.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder, self.limit = folder / "packed", limit
        self.notes = Notes(folder / "notes")

    @classmethod
    def default(cls) -> Cache:
        """The cache of the environment: OXILLAMA_CACHE, or oxillama in XDG_CACHE_HOME, or in ~/.cache; of
        OXILLAMA_CACHE_SIZE bytes. Raises ConfigError for values that are none, and without a home."""
        size = os.environ.get("OXILLAMA_CACHE_SIZE")
        limit = LIMIT if not size else read_size(size)
        if limit is None:
            raise ConfigError(f"OXILLAMA_CACHE_SIZE must be bytes, or a number with K, M, G or T, not {size!r}")
        return cls(cache_folder(), limit)

    def path_of(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    @contextlib.contextmanager
    def lock(self, key: str, poll: Callable[[], None]) -> Iterator[None]:
        """Holds the lock under which a file is made. ``poll`` is called while another process has it.

        Raises LoadError if the folder can't be written.
        """
        path = self.folder / f"{key}.lock"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _locked(path, poll)
        except OSError as error:
            raise not_writable(self.folder, error) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # while it is locked: another file may have the name afterwards
                os.unlink(path)
            os.close(descriptor)

    def touch(self, key: str) -> None:
        """Notes that a file is used now, if the folder can be written."""
        with contextlib.suppress(OSError):
            (self.folder / f"{key}.used").touch()

    def files(self) -> list[Cached]:
        """The files that are there, the most recently used first."""
        found = []
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):
                found.append(Cached(path, path.stat().st_size, _used(path), is_in_use(path), _model(path)))
        return sorted(found, key=lambda file: -file.used)

    def _paths(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        return []

    def evict(self, keep: Path | None, limit: int | None = None) -> int:
        """Removes files not in use, the least recently used first, down to the limit. Returns the bytes freed.

        keep: one that stays.
        """
        limit, freed = self.limit if limit is None else limit, 0
        paths = sorted(self._paths(), key=_used)
        total = sum(_size(path) for path in paths)
        for path in paths:
            if total - freed <= limit:
                break
            if path != keep and (n_bytes := remove(path)):
                _log.info("%s: evicted from the cache of packed weights", path)
                freed += n_bytes
        self.notes.prune()
        return freed

    def clear(self) -> tuple[int, list[Path]]:
        """Removes all files not in use, and all notes: bytes freed, and what is in use and stays."""
        freed = self.evict(None, 0)
        self.notes.clear()
        return freed, self._paths()


def cache_folder() -> Path:
    """The folder for everything that can be made again. Raises ConfigError without any."""
    own, shared = os.environ.get("OXILLAMA_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(os.path.abspath(os.path.expanduser(own)))
    if shared and os.path.isabs(shared):  # others are to be ignored, says the specification
        return Path(shared) / "oxillama"
    try:
        return Path.home() / ".cache" / "oxillama"
    except RuntimeError:
        raise ConfigError("OXILLAMA_CACHE must be set to a folder: there is no home for ~/.cache/oxillama") from None


def not_writable(place: Path, error: OSError) -> LoadError:
    """The error for a cache that nothing can be written to."""
    return LoadError(
        f"{place}: packed weights can't be written: {error.strerror or error}; set OXILLAMA_CACHE to a folder with "
        "room, or give packed the path of a file that `oxillama pack` made"
    )


def is_in_use(path: Path) -> bool:
    """Whether a process has the file open; True where locks can't tell."""
    with contextlib.suppress(FileNotFoundError), _exclusive(path) as held:
        return not held
    return False


def remove(path: Path) -> int:
    """Removes a file unless it is in use: bytes freed."""
    with contextlib.suppress(OSError), _exclusive(path) as held:
        if held:
            n_bytes = path.stat().st_size
            path.unlink()
            path.with_suffix(".used").unlink(missing_ok=True)
            return n_bytes
    return 0


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[bool]:
    """Whether a file is locked by this alone. Raises OSError if it can't be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = True
    except OSError:
        held = False
    try:
        yield held
    finally:
        os.close(descriptor)


def _locked(path: Path, poll: Callable[[], None]) -> int:
    """A descriptor of the file of this name, locked; unlocked where the file system has no locks. Raises OSError."""
    began, told = time.monotonic(), False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(descriptor):
                if not told and time.monotonic() - began > PATIENCE:
                    told = True
                    _log.info("%s: waiting for the process that packs this model", path)
                poll()
                time.sleep(POLL_SECONDS)
            if os.fstat(descriptor).st_nlink:  # else its owner ended, and removed it
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # two processes may then make the file at once: the last one's stays
    return True


def _used(path: Path) -> float:
    for place in (path.with_suffix(".used"), path):
        with contextlib.suppress(OSError):
            return place.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _model(path: Path) -> str:
    try:
        return PackedFile(path).header.model_path or "a model in memory"
    except LoadError as error:
        return f"not usable: {error}"
