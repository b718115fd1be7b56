"""Cache of packed files: a folder with a size limit, from which the least recently used go."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oxillama._util.sizes import read_size
from oxillama._util.trust import folder_fault
from oxillama.errors import ConfigError, LoadError
from oxillama.gguf.output import open_folder, remove_leftovers
from oxillama.models.packed.file import PackedFile
from oxillama.models.packed.notes import Notes, make_private

__all__ = ["Cache", "Cached"]

SUFFIX = ".oxpack"
LIMIT = 64 << 30  # bytes of all packed files together
POLL_SECONDS = 0.05
PATIENCE = 5.0  # seconds after which waiting for another process is logged
STALLED = 600.0  # seconds in which a packer wrote nothing, after which it isn't waited for: it flushes 512 MB at most

_NAME = re.compile(r"[0-9a-f]{40}" + re.escape(SUFFIX))
_BESIDE = re.compile(r"[0-9a-f]{40}\.(used|lock)")
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
        self.root, self.folder, self.limit = folder, folder / "packed", limit
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

    def check(self) -> None:
        """Raises LoadError if others can write to the cache: what they put there would be computed with."""
        for place in (self.root, self.folder):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                fault = folder_fault(place)
                if fault is not None:
                    raise LoadError(
                        f"{place}: packed weights are kept where no other user can write, and here {fault}; set "
                        "OXILLAMA_CACHE to a folder of your own, or give packed the path of a file that `oxillama "
                        "pack` made"
                    )

    def path_of(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    @contextlib.contextmanager
    def lock(self, key: str, poll: Callable[[], None]) -> Iterator[None]:
        """Holds the lock under which a file is made. ``poll`` is called while another process has it.

        Raises LoadError if the folder can't be written, or if that process has written nothing in a long time.
        """
        path = self.folder / f"{key}.lock"
        try:
            make_private(self.folder)
            self.check()
            descriptor = _locked(path, poll)
        except LoadError:
            raise
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
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self.folder / f"{key}.used", flags, 0o600)
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)

    def files(self) -> list[Cached]:
        """The files that are there, the most recently used first."""
        found = []
        for path in self._paths():
            with contextlib.suppress(OSError):
                found.append(Cached(path, path.stat().st_size, _used(path), is_in_use(path), _model(path)))
        return sorted(found, key=lambda file: -file.used)

    def _paths(self) -> list[Path]:
        return self._named(_NAME)

    def _named(self, names: re.Pattern[str]) -> list[Path]:
        """Regular files of these names: opening a pipe would wait for ever, and links lead elsewhere."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return [path for path in self.folder.iterdir() if names.fullmatch(path.name) and _is_regular(path)]
        return []

    def evict(self, keep: Path | None, limit: int | None = None) -> int:
        """Removes files not in use, the least recently used first, down to the limit. Returns the bytes freed.

        keep: one that stays.
        """
        limit, freed = self.limit if limit is None else limit, 0
        left = self._remove_leftovers()
        paths = sorted(self._paths(), key=_used)
        total = sum(_size(path) for path in paths)
        for path in paths:
            if total - freed <= limit:
                break
            if path != keep and (n_bytes := remove(path)):
                _log.info("%s: evicted from the cache of packed weights", path)
                freed += n_bytes
        self.notes.prune()
        return freed + left

    def _remove_leftovers(self) -> int:
        """Removes what killed processes left: halves of packed files, locks, times of use. Returns the bytes freed."""
        freed = 0
        with contextlib.suppress(OSError), open_folder(os.path.realpath(self.folder)) as folder:
            freed = remove_leftovers(folder, _NAME)
        for path in self._named(_BESIDE):
            if not path.with_suffix(SUFFIX).exists():
                remove(path)
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
    try:
        with _exclusive(path) as held:
            return held is None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def remove(path: Path) -> int:
    """Removes a file unless it is in use: bytes freed."""
    with contextlib.suppress(OSError), _exclusive(path) as held:
        # Another process may have given the name to another file, which is not locked, since this one was opened.
        if held is not None and os.path.samestat(held, path.lstat()):
            path.unlink()
            path.with_suffix(".used").unlink(missing_ok=True)
            return held.st_size
    return 0


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[os.stat_result | None]:
    """A file that is locked by this alone, None if it can't be. Raises OSError if it can't be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(descriptor)
        except OSError:
            held = None
        yield held
    finally:
        os.close(descriptor)


def _is_regular(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def _locked(path: Path, poll: Callable[[], None]) -> int:
    """A descriptor of the file of this name, locked; unlocked where the file system has no locks. Raises OSError, and
    LoadError if the process that has the lock writes nothing."""
    wait = _Wait(path)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(descriptor):
                wait.check()
                poll()
                time.sleep(POLL_SECONDS)
            if os.fstat(descriptor).st_nlink:  # else its owner ended, and removed it
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


class _Wait:
    """Waiting for the process that has a lock: told once, and ended when that process has written nothing for long."""

    def __init__(self, path: Path) -> None:
        self._path, self._told = path, False
        self._began = self._changed = time.monotonic()
        self._written = self._state()

    def check(self) -> None:
        """Raises LoadError if the other process is stopped."""
        now, written = time.monotonic(), self._state()
        if written != self._written:
            self._changed, self._written = now, written
        if now - self._changed > STALLED:
            raise LoadError(
                f"{self._path}: the process that packs this model has written nothing in {STALLED:.0f} seconds: end it "
                "if it is stopped, or load without packed"
            )
        if not self._told and now - self._began > PATIENCE:
            self._told = True
            _log.warning("%s: waiting for the process that packs this model", self._path)

    def _state(self) -> list[tuple[str, int, int]]:
        """Names, sizes and times of the files that are being written."""
        found = []
        for place in self._path.parent.glob(f".{self._path.stem}{SUFFIX}.*.tmp"):
            with contextlib.suppress(OSError):
                info = place.lstat()
                found.append((place.name, info.st_size, info.st_mtime_ns))
        return sorted(found)


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
