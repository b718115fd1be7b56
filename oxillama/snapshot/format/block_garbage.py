"""Garbage collection of a block store: blocks that no snapshot names."""

from __future__ import annotations

import errno
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError, SnapshotFileError
from oxillama.gguf.output import names_in, open_folder, remove_leftovers, sync_folder
from oxillama.snapshot.format.block_store import BLOCK_FOLDER, BLOCK_PANELS, held, put_block, remove_others
from oxillama.snapshot.format.layout import MAGIC
from oxillama.snapshot.format.reader import ArrayRows, Contents, SnapshotReader
from oxillama.snapshot.format.source import FileSource
from oxillama.snapshot.format.writer import write_file

__all__ = [
    "collect_garbage",
    "write_shared",
]

SHOWN = 5  # names in a warning

log = logging.getLogger("oxillama")


def write_shared(saved: Contents, path: Path) -> None:
    """Writes a snapshot whose whole blocks of tokens are in the folder `blocks` beside it. Raises SnapshotFileError."""
    names = [name for name, rows in saved.tensors.items() if name.startswith("kv.") and not rows.first]
    n_blocks = min((saved.tensors[name].stop for name in names), default=0) // BLOCK_PANELS
    folder = Path(os.path.realpath(path)).parent
    label = str(folder / BLOCK_FOLDER)
    try:
        with open_folder(folder) as place, held(place, label, alone=False) as blocks:
            if n_blocks:
                digests = [put_block(blocks, label, _parts(saved, names, i)) for i in range(n_blocks)]
                sync_folder(blocks)
                saved = _without(saved, names, n_blocks)
                saved.state["blocks"] = {"arrays": names, "digests": digests}
            write_file(saved, path)
    except SnapshotFileError:
        raise
    except (OSError, ConfigError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SnapshotFileError(f"{str(path)!r}: its blocks can't be written: {reason}") from error


def _parts(saved: Contents, names: list[str], i: int) -> list[NDArray[Any]]:
    rows = slice(i * BLOCK_PANELS, (i + 1) * BLOCK_PANELS)
    return [np.ascontiguousarray(saved.tensors[name].data[rows]) for name in names]


def _without(saved: Contents, names: list[str], n_blocks: int) -> Contents:
    n_rows = n_blocks * BLOCK_PANELS
    rest = {name: ArrayRows(0, n_rows, saved.tensors[name].data[n_rows:]) for name in names}
    return replace(saved, state=dict(saved.state), tensors=saved.tensors | rest)


def collect_garbage(folder: str | os.PathLike[str]) -> int:
    """Removes the blocks that no snapshot in a folder needs. Returns the number of bytes freed.

    Also removes the temporary files of killed writers. Waits until no process writes a snapshot with shared blocks
    there. Removes only regular files without a second hard link that are named as blocks or temporary files; no
    folders, and no symbolic link is followed. Other files among the blocks stay, and a warning is logged.

    Raises SnapshotError's children, and removes no block, if a snapshot in the folder can't be read, since the blocks
    that it needs are unknown. Raises ConfigError if there are no blocks.
    """
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ConfigError(f"folder must be the path of a folder, not {folder!r:.60}")
    path = Path(os.fsdecode(folder))
    label = str(path / BLOCK_FOLDER)
    try:
        if "\0" in str(path) or not os.path.lexists(label):
            raise ConfigError(f"folder must be one of snapshots with shared blocks, not {str(path)!r}")
        with open_folder(os.path.realpath(path)) as place, held(place, label, alone=True) as blocks:
            freed = remove_leftovers(place)
            n, others = remove_others(blocks, _wanted(place, path))
    except SnapshotFileError:
        raise
    except OSError as error:
        raise SnapshotFileError(f"{path}: its blocks can't be collected: {error}") from error
    if others:
        shown = ", ".join(map(repr, others[:SHOWN])) + (", ..." if len(others) > SHOWN else "")
        log.warning(
            "%s: %d files in it are not named as blocks, or have a second name, and stay: %s", label, len(others), shown
        )
    return freed + n


def _wanted(place: int, path: Path) -> set[str]:
    """Names of the blocks that the snapshots in an open folder need. path: the folder's, for messages."""
    found: set[str] = set()
    for name in names_in(place):
        if _is_file(place, name):
            try:
                found |= _needed(FileSource(Path(name), place, label=str(path / name)))
            except SnapshotFileError:
                if _is_file(place, name):  # else it was removed meanwhile, and needs none
                    raise
    return found


def _is_file(place: int, name: str) -> bool:
    """Whether a name is that of a regular file, or of a link to one. Raises OSError if it can't be examined."""
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=place).st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise


def _needed(source: FileSource) -> set[str]:
    """Names of the blocks that a file needs; none if it is a version 1 snapshot or no snapshot."""
    try:
        head = bytes(source.read(0, min(len(MAGIC) + 1, source.n_bytes)))
        if not head.startswith(MAGIC) or head[len(MAGIC) :] == b"\x01":
            return set()
        state = SnapshotReader(source).state
        return set(state.sub("blocks").texts("digests")) if "blocks" in state else set()
    finally:
        source.close()
