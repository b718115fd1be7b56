"""Snapshots of sessions and requests: saved to a file or to bytes, resumed in another process, bit for bit.

>>> engine.snapshot("session.snap")
>>> engine = ox.Engine.restore("session.snap")

`Engine.snapshot` and `Engine.resume` document what is saved and how; `snapshot/format/layout.py` describes the file.
Nothing in a snapshot is ever executed, and every length is checked.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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

# Functions that call methods of `Engine`, which is above this package: imported when one is asked for.
_OF_ENGINE = ("dump", "dumps", "load", "loads")


def __getattr__(name: str) -> Any:
    if name in _OF_ENGINE:
        return getattr(import_module("oxillama.engine.functions"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
