"""Blocks of tokens that snapshots in a folder have in common, each stored once under the name of what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama.errors import SnapshotDamagedError, SnapshotFormatError
from oxillama.snapshot.fields import Fields
from oxillama.snapshot.layout import Section
from oxillama.snapshot.sources import FileSource, Source

__all__ = ["BLOCK_FOLDER", "block_path", "read_blocks"]

BLOCK_FOLDER = "blocks"


def block_path(digest: str) -> str:
    """The place of a block in the folder of the snapshots."""
    return f"{BLOCK_FOLDER}/{digest[:2]}/{digest[2:]}"


def read_blocks(source: Source, given: Fields, sections: Mapping[str, Section]) -> dict[str, NDArray[Any]]:
    """The first rows of the arrays that are in blocks: all of them up to those in the file.

    Raises SnapshotFileError for a block that is missing, SnapshotDamagedError for one that holds something else.
    """
    raise NotImplementedError
