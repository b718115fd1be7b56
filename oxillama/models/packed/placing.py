"""Place of a model's weights in its packed file: named, or in the cache, where it is made when it is needed."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from oxillama._util.places import Place
from oxillama._util.trust import OTHERS
from oxillama.errors import LoadError, ModelNotFoundError, PackedFileError
from oxillama.gguf import GGUFFile
from oxillama.gguf import open as open_gguf
from oxillama.gguf.output import atomic_file, atomic_in, check_not_source, open_folder
from oxillama.gguf.source import FileSource
from oxillama.models.packed.cache import Cache, not_writable
from oxillama.models.packed.file import PackedFile
from oxillama.models.packed.layout import Header
from oxillama.models.packed.notes import Notes, model_digest, stamp_of
from oxillama.models.packed.writing import header_of, write_packed
from oxillama.models.registry import load_model
from oxillama.models.weights import Weights, counted

__all__ = ["find_packed", "pack_model", "place_packed", "verify_model"]

Progress = Callable[[int], None]  # bytes of a matrix that is done
LoadProgress = Callable[[int, int], object]  # bytes of tensors that are done, bytes of all

_log = logging.getLogger("oxillama")


def place_packed(
    file: GGUFFile,
    packed: str | os.PathLike[str] | bool,
    num_threads: int,
    progress: Progress | None,
    weights: Weights,
) -> Sequence[FileSource]:
    """Maps a built model's weights from its packed file; returns the file that stays mapped.

    Raises what `find_packed` raises.
    """
    found = find_packed(file, packed, num_threads, progress, weights)
    weights.take(found.parts())
    return [found.source]


def find_packed(
    file: GGUFFile,
    packed: str | os.PathLike[str] | bool,
    num_threads: int,
    progress: Progress | None,
    weights: Weights,
) -> PackedFile:
    """A built model's packed file, whose checksums are right.

    packed: True takes the one of the cache, which is made if it isn't there, and again if it is damaged or cut off; a
    path is only read. Raises PackedFileError for a file that is named and can't be used, ModelNotFoundError if there is
    none, LoadError if the cache can't be written, ModelFileError if the model is changed meanwhile.
    """
    if isinstance(packed, bool):
        return _cached(file, Cache.default(), num_threads, progress, weights)
    return _named(file, Path(os.fspath(packed)), num_threads, weights)


def pack_model(model: Place, path: Path | None, num_threads: int, progress: LoadProgress | None = None) -> Path:
    """Writes a model's packed file, or without a path has it in the cache; returns its path.

    Raises LoadError and its children for a model that can't be loaded and a cache that can't be written, OSError and
    ConfigError for a path that can't be (`atomic_file`).
    """
    return _with_weights(model, path, num_threads, progress, _packed)


def verify_model(model: Place, path: Path | None, num_threads: int, progress: LoadProgress | None = None) -> Path:
    """Reads a model's packed file, or without a path that in the cache, and compares all checksums; returns its path.

    Raises PackedFileError, which names the place, if it is damaged or of another model, ModelNotFoundError without any.
    """
    return _with_weights(model, path, num_threads, progress, _verified)


Act = Callable[[GGUFFile, Path | None, int, Progress | None, Weights], Path]


def _with_weights(model: Place, path: Path | None, num_threads: int, progress: LoadProgress | None, act: Act) -> Path:
    """Builds a model and does something with its weights; the path of the packed file."""
    found: list[Path] = []

    def place(weights: Weights) -> Sequence[FileSource]:
        found.append(act(file, path, num_threads, None if progress is None else counted(progress, total), weights))
        return ()

    with open_gguf(model) as file:
        total = sum(t.nbytes for t in file.tensors.values())
        load_model(file, num_threads=num_threads, place=place)
    return found[0]


def _packed(file: GGUFFile, path: Path | None, num_threads: int, progress: Progress | None, weights: Weights) -> Path:
    if path is None:
        return _cached(file, Cache.default(), num_threads, progress, weights).source.path
    check_not_source(path, *(shard.path for shard in file.shards))
    header = header_of(weights, file, model_digest(file, _notes(), num_threads))
    _write(file, path, header, num_threads, progress, weights)
    return path


def _verified(file: GGUFFile, path: Path | None, num_threads: int, progress: Progress | None, weights: Weights) -> Path:
    wanted = header_of(weights, file, model_digest(file, _notes(), num_threads))
    found = _of_cache(Cache.default(), wanted.key()) if path is None else PackedFile(path, _owners(file))
    found.check_model(wanted)
    found.verify(num_threads)
    return found.source.path


def _named(file: GGUFFile, path: Path, num_threads: int, weights: Weights) -> PackedFile:
    notes = _notes()
    found = PackedFile(path, _owners(file))
    found.check_model(header_of(weights, file, model_digest(file, notes, num_threads)))
    found.verify_once(notes, num_threads)
    return found


def _owners(file: GGUFFile) -> set[int]:
    """Owners of the model itself: they may have packed it."""
    return {os.fstat(shard.source.fd).st_uid for shard in file.shards if shard.source is not None}


def _notes() -> Notes:
    """The notes of the cache, if there is a folder for one: a named file needs none."""
    with contextlib.suppress(LoadError, ValueError):
        return Cache.default().notes
    return Notes(None)


def _cached(file: GGUFFile, cache: Cache, num_threads: int, progress: Progress | None, weights: Weights) -> PackedFile:
    cache.check()
    wanted = header_of(weights, file, model_digest(file, cache.notes, num_threads))
    key = wanted.key()
    path = cache.path_of(key)
    find = partial(_usable, cache, wanted, num_threads)
    found = find()
    if found is None:
        with cache.lock(key, lambda: progress(0) if progress is not None else None):
            found = find()  # made by the process that had the lock
            if found is None:
                found = _made(
                    path, partial(_write, file, path, wanted, num_threads, progress, weights, new_file=_new_in)
                )
                found.check_model(wanted)
                cache.notes.keep(stamp_of(found.source), found.digest)
        cache.touch(key)
        cache.evict(path)
    cache.touch(key)
    return found


@contextlib.contextmanager
def _new_in(path: Path) -> Iterator[BinaryIO]:
    """`atomic_file` in the cache, in place of a symbolic link of the name: it isn't followed."""
    with open_folder(os.path.realpath(path.parent)) as folder:
        if path.is_symlink():
            path.unlink()
        with atomic_in(folder, path.name, path) as out:
            yield out


def _made(path: Path, write: Callable[[Callable[[int], object]], None]) -> PackedFile:
    """The file that was written and opened, locked for sharing from before it gets its name: no eviction takes it."""
    with contextlib.ExitStack() as held:

        def hold(descriptor: int) -> None:
            again = os.dup(descriptor)  # of the same lock, which then outlives the writer's descriptor
            held.callback(os.close, again)
            with contextlib.suppress(OSError):  # file systems without locks
                fcntl.flock(again, fcntl.LOCK_SH)

        try:
            write(hold)
        except OSError as error:
            if isinstance(error, LoadError):
                raise
            raise not_writable(path, error) from error
        return PackedFile(path, ())


def _of_cache(cache: Cache, key: str) -> PackedFile:
    """The file of a key, which no other user could have written. Raises what `PackedFile` raises, LoadError for a cache
    that others can write to."""
    cache.check()
    path = cache.path_of(key)
    if path.is_symlink():
        raise PackedFileError(f"{path}: this is a symbolic link, and no file of the cache")
    return PackedFile(path, ())


def _usable(cache: Cache, wanted: Header, num_threads: int) -> PackedFile | None:
    """The file if it is there and whole; None, and a line in the log, for one that must be made again."""
    try:
        found = _of_cache(cache, wanted.key())
        found.check_model(wanted)
        found.verify_once(cache.notes, num_threads)
    except ModelNotFoundError:
        return None
    except PackedFileError as error:
        _log.warning("%s; it is made again", error)
        return None
    return found if found.is_linked else None


def _write(
    file: GGUFFile,
    path: Path,
    header: Header,
    num_threads: int,
    progress: Progress | None,
    weights: Weights,
    hold: Callable[[int], object] = lambda descriptor: None,
    new_file: Callable[[Path], AbstractContextManager[BinaryIO]] = atomic_file,
) -> None:
    """Writes a packed file. ``hold`` is called with its descriptor when all is written, before it has its name."""
    with new_file(path) as out:
        os.fchmod(out.fileno(), stat.S_IMODE(os.fstat(out.fileno()).st_mode) & ~OTHERS)
        write_packed(out, weights, header, num_threads, progress)
        file.check()  # before it gets its name: what was read of a changed file is not kept
        out.flush()
        hold(out.fileno())
