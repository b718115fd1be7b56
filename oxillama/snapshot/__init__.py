"""Snapshots of sessions and requests: saved to a file or to bytes, resumed in another process, bit for bit.

>>> engine.snapshot("session.snap")
>>> engine = ox.Engine.restore("session.snap")

`Engine.snapshot` and `Engine.resume` document what is saved and how; `snapshot/format/layout.py` describes the file.
Nothing in a snapshot is ever executed, and every length is checked.
"""

from __future__ import annotations

from typing import Any

from oxillama._util.lazy import given_name
from oxillama.errors import (
    SnapshotDamagedError,
    SnapshotError,
    SnapshotFileError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.snapshot.format.block_garbage import collect_garbage
from oxillama.snapshot.info import SnapshotInfo, snapshot_info

__all__ = [
    "ModelFingerprint",
    "SnapshotDamagedError",
    "SnapshotError",
    "SnapshotFileError",
    "SnapshotFormatError",
    "SnapshotInfo",
    "SnapshotMismatchError",
    "collect_garbage",
    "dump",
    "dumps",
    "load",
    "loads",
    "snapshot_info",
]


def __getattr__(name: str) -> Any:
    """Functions that call methods of `Engine`, which is above this package: `oxillama/__init__.py` gives them."""
    return given_name(__name__, name)
