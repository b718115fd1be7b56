"""Block store: KV blocks shared between snapshots by content hash.

``FOLDER/blocks/ab/cdef…`` holds `BLOCK_PANELS` panels of 16 tokens of every array that a snapshot names, one after
another; its name is the BLAKE3 of that. Equal beginnings of sessions are equal bits, and so the same files. Writers and
collectors of garbage follow no symbolic link below ``FOLDER``, whose contents may be anybody's.

A process that writes a snapshot shares the lock of the file ``blocks/lock`` with others, from the first block to the
snapshot's name; one that removes blocks holds it alone. So no process removes a block that another is about to name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama._util.json_fields import Fields
from oxillama._util.signals import DeferredInterrupt
from oxillama.errors import SnapshotDamagedError, SnapshotError, SnapshotFileError, SnapshotFormatError
from oxillama.gguf.output import atomic_in, names_in, open_folder, remove_file, remove_leftovers
from oxillama.snapshot.format.layout import Section
from oxillama.snapshot.format.source import FileSource, Source

__all__ = [
    "BLOCK_FOLDER",
    "BLOCK_PANELS",
    "held",
    "put_block",
    "read_blocks",
    "remove_others",
]

BLOCK_FOLDER = "blocks"
LOCK = "lock"
BEGIN, REST = re.compile("[0-9a-f]{2}"), re.compile("[0-9a-f]{62}")  # of a block's name: folder, and file
LINKS = (errno.ELOOP, errno.ENOTDIR)  # errors of opening a symbolic link that is not followed
BLOCK_PANELS = 4  # 64 tokens: 2 MB for a model of a billion weights


@contextmanager
def held(folder: int, label: str, *, alone: bool) -> Iterator[int]:
    """The descriptor of the block folder, created if missing, with a shared lock or (alone) an exclusive one.

    folder: the descriptor of its parent folder. label: its path, for messages. Raises SnapshotFileError.
    """
    owned = list[int]()
    try:
        try:
            with _opened(folder, label) as blocks:
                _take(blocks, label, owned, alone=alone)
                yield blocks
        finally:
            _let_go(owned)
    except BaseException:  # perhaps a signal's, before the `with` began: a lock left behind would block the collection
        _let_go(owned)
        raise


@contextmanager
def _opened(folder: int, label: str) -> Iterator[int]:
    with ExitStack() as stack:
        try:
            with suppress(FileExistsError):
                os.mkdir(BLOCK_FOLDER, dir_fd=folder)
            blocks = stack.enter_context(open_folder(BLOCK_FOLDER, folder))
        except OSError as error:
            reason = "it is a symbolic link, or no folder" if error.errno in LINKS else error.strerror
            raise SnapshotFileError(f"{label!r}: there can be no blocks: {reason}") from error
        yield blocks


def _take(blocks: int, label: str, owned: list[int], *, alone: bool) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with DeferredInterrupt():
            owned.append(os.open(LOCK, flags, 0o666, dir_fd=blocks))
        if not stat.S_ISREG(os.fstat(owned[0]).st_mode):
            raise SnapshotFileError(f"{label!r}: there can be no blocks: the file {LOCK!r} in it is no regular file")
        fcntl.flock(owned[0], fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    except OSError as error:
        if isinstance(error, SnapshotFileError):
            raise
        reason = f"the file {LOCK!r} in it is a symbolic link" if error.errno in LINKS else error.strerror
        raise SnapshotFileError(f"{label!r}: there can be no blocks: {reason}") from error


def _let_go(owned: list[int]) -> None:
    with DeferredInterrupt():
        for descriptor in owned:
            with suppress(OSError):
                # Closing alone is not enough: a process forked meanwhile has a copy, and holds the lock while it lives.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            with suppress(OSError):
                os.close(descriptor)
        owned.clear()


def put_block(blocks: int, label: str, parts: list[NDArray[Any]]) -> str:
    """Stores a block unless it exists, and returns its name. A damaged block is written again.

    blocks, label: descriptor and path of the block folder. Raises OSError, and ConfigError where the block's name is
    that of something other than a regular file.
    """
    h = blake3()
    for part in parts:
        h.update(cast(Any, part))
    digest = h.hexdigest()
    begin, rest = digest[:2], digest[2:]
    with suppress(FileExistsError):
        os.mkdir(begin, dir_fd=blocks)
    with open_folder(begin, blocks) as folder:
        if not _intact(folder, rest, digest, sum(part.nbytes for part in parts)):
            with atomic_in(folder, rest, Path(label, begin, rest)) as f:
                for part in parts:
                    f.write(cast(Any, part))
    return digest


def _intact(folder: int, name: str, digest: str, size: int) -> bool:
    try:
        block = FileSource(Path(name), folder)
    except SnapshotFileError:
        return False
    try:
        return block.n_bytes == size and blake3(block.read(0, size)).hexdigest() == digest
    except SnapshotError:
        return False
    finally:
        block.close()


def read_blocks(
    source: Source, given: Fields, sections: Mapping[str, Section], expect: Callable[[Section], None]
) -> dict[str, NDArray[Any]]:
    """The rows of arrays that are in blocks: all rows before the file's own.

    Raises SnapshotFileError for a missing block, SnapshotDamagedError for a block with other contents, and what
    `expect` raises for an impossible array, before memory is allocated for it.
    """
    if source.folder is None:
        raise SnapshotFormatError(f"{source.label}: it needs the folder {BLOCK_FOLDER!r} beside it: give its path")
    names, digests = given.texts("arrays"), given.texts("digests")
    n_rows = BLOCK_PANELS * len(digests)
    found, sizes = {}, []
    for name in names:
        section = sections.get(name)
        if section is None or section.first != n_rows or name in found:
            raise given.wrong("arrays", f"the arrays that begin with {n_rows} rows in blocks")
        expect(section)
        row = prod(section.shape[1:]) * section.dtype.itemsize
        found[name] = np.empty((n_rows, *section.shape[1:]), section.dtype)
        sizes.append(BLOCK_PANELS * row)
    for i, digest in enumerate(digests):
        data, at = _block(source, digest, sum(sizes)), 0
        for name, size in zip(names, sizes, strict=True):
            rows = found[name][i * BLOCK_PANELS : (i + 1) * BLOCK_PANELS]
            rows[:] = np.frombuffer(data[at : at + size], rows.dtype).reshape(rows.shape)
            at += size
    return found


def _block(source: Source, digest: str, size: int) -> memoryview:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise SnapshotDamagedError(f"{source.label}: {digest!r:.80} is no name of a block")
    path = cast(Path, source.folder) / BLOCK_FOLDER / digest[:2] / digest[2:]
    try:
        block = FileSource(path)
    except SnapshotFileError as error:
        raise SnapshotFileError(f"{source.label}: block {digest} can't be read: {error}") from error
    try:
        if block.n_bytes != size:
            raise SnapshotDamagedError(f"{source.label}: block {digest} has {block.n_bytes} bytes, not {size}")
        data = block.read(0, size)
    finally:
        block.close()
    if blake3(data).hexdigest() != digest:
        raise SnapshotDamagedError(f"{source.label}: block {digest} holds other bytes than were written")
    return data


def remove_others(blocks: int, wanted: set[str]) -> tuple[int, list[str]]:
    """Removes blocks that are not wanted, and temporary files of killed writers. Returns the number of bytes freed, and
    the names of other files, which stay.

    blocks: the descriptor of the block folder, exclusively locked. No link is followed, and only regular files without
    a second hard link that are named as blocks or temporary files are removed. Raises OSError.
    """
    freed, others = 0, []
    for begin in names_in(blocks):
        if begin == LOCK:
            continue
        info = os.stat(begin, dir_fd=blocks, follow_symlinks=False)
        if not BEGIN.fullmatch(begin) or not stat.S_ISDIR(info.st_mode):
            others.append(begin)
            continue
        with open_folder(begin, blocks) as folder:
            n, left = _remove_in(folder, {name[2:] for name in wanted if name[:2] == begin})
        freed += n
        others += [f"{begin}/{name}" for name in left]
    return freed, others


def _remove_in(folder: int, wanted: set[str]) -> tuple[int, list[str]]:
    freed, others = remove_leftovers(folder, REST), []
    for name in names_in(folder):
        if name in wanted:
            continue
        n = remove_file(folder, name) if REST.fullmatch(name) else None
        if n is None:
            others.append(name)
        freed += n or 0
    return freed, others
