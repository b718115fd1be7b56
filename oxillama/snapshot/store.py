"""Snapshots that share their blocks in one folder: writing them, and removing what none of them needs any more."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError, SnapshotFileError
from oxillama.gguf.output import remove_leftovers, sync_folder
from oxillama.snapshot.blocks import BLOCK_FOLDER, BLOCK_PANELS, held, put_block, remove_others
from oxillama.snapshot.layout import MAGIC
from oxillama.snapshot.saved import Rows, Saved, open_reader
from oxillama.snapshot.writing import write_file

__all__ = ["collect_garbage", "write_shared"]


def write_shared(saved: Saved, path: Path) -> None:
    """Writes a snapshot whose whole blocks of tokens are in the folder `blocks` beside it. Raises SnapshotFileError."""
    names = [name for name, rows in saved.tensors.items() if name.startswith("kv.") and not rows.first]
    n_blocks = min((saved.tensors[name].stop for name in names), default=0) // BLOCK_PANELS
    try:
        with held(Path(os.path.realpath(path)).parent, alone=False) as blocks:
            if n_blocks:
                digests = [put_block(blocks, _parts(saved, names, i)) for i in range(n_blocks)]
                sync_folder(blocks)
                saved = _without(saved, names, n_blocks)
                saved.state["blocks"] = {"arrays": names, "digests": digests}
            write_file(saved, path)
    except SnapshotFileError:
        raise
    except OSError as error:
        raise SnapshotFileError(f"{str(path)!r}: its blocks can't be written: {error.strerror}") from error


def _parts(saved: Saved, names: list[str], i: int) -> list[NDArray[Any]]:
    rows = slice(i * BLOCK_PANELS, (i + 1) * BLOCK_PANELS)
    return [np.ascontiguousarray(saved.tensors[name].data[rows]) for name in names]


def _without(saved: Saved, names: list[str], n_blocks: int) -> Saved:
    n_rows = n_blocks * BLOCK_PANELS
    rest = {name: Rows(0, n_rows, saved.tensors[name].data[n_rows:]) for name in names}
    return replace(saved, state=dict(saved.state), tensors=saved.tensors | rest)


def collect_garbage(folder: str | os.PathLike[str]) -> int:
    """Removes the blocks that no snapshot in a folder needs: how many bytes are free by that.

    Removes what writers of snapshots left that were killed, too. Waits until nobody writes a snapshot with shared
    blocks there. Raises SnapshotError's children, and removes no block then, if a snapshot in it can't be read: what
    that needs is not known.
    """
    place = Path(os.fspath(folder))
    try:
        if not (place / BLOCK_FOLDER).is_dir():
            raise ConfigError(f"folder must be one of snapshots with shared blocks, not {str(place)!r}")
        with held(place, alone=True) as blocks:
            return remove_leftovers(place) + remove_others(blocks, _wanted(place))
    except SnapshotFileError:
        raise
    except OSError as error:
        raise SnapshotFileError(f"{place}: its blocks can't be collected: {error}") from error


def _wanted(place: Path) -> set[str]:
    """Names of the blocks that snapshots in a folder need."""
    found: set[str] = set()
    for path in sorted(place.iterdir()):
        try:
            if path.is_file() and _is_snapshot(path):
                with open_reader(path) as reader:
                    found |= set(reader.state.sub("blocks").texts("digests") if "blocks" in reader.state else ())
        except (OSError, SnapshotFileError):
            if os.path.lexists(path):  # else it was removed meanwhile, and needs none
                raise
    return found


def _is_snapshot(path: Path) -> bool:
    """One that may refer to blocks: not those of version 1, nor what is no snapshot."""
    with path.open("rb") as f:
        head = f.read(len(MAGIC) + 4)
    return head[: len(MAGIC)] == MAGIC and head[len(MAGIC) : len(MAGIC) + 1] != b"\x01"
