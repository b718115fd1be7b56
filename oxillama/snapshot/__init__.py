"""Sessions that survive: saved to a file or to bytes, and resumed in another process, bit for bit.

>>> engine.snapshot("session.snap")
>>> engine = ox.Engine.restore("session.snap")

`Engine.snapshot` and `Engine.resume` say what is saved and how; `snapshot/layout.py` describes the file. Nothing in it
is ever executed, and every length is checked.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from oxillama.config import ModelSource
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

if TYPE_CHECKING:
    from oxillama.engine.engine import Engine

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


def dump(engine: Engine, path: str | os.PathLike[str], **options: Any) -> None:
    """`engine.snapshot(path)`, with its options and errors."""
    engine.snapshot(path, **options)


def dumps(engine: Engine, **options: Any) -> bytes:
    """`engine.snapshot_bytes()`, with its options and errors."""
    return engine.snapshot_bytes(**options)


def load(path: str | os.PathLike[str], *, model_path: ModelSource | Engine = None, **options: Any) -> Engine:
    """`Engine.restore(path)`, with its options and errors."""
    from oxillama.engine.engine import Engine

    return Engine.restore(path, model_path, **options)


def loads(data: bytes | bytearray | memoryview, *, model_path: ModelSource | Engine = None, **options: Any) -> Engine:
    """`Engine.restore_bytes(data)`, with its options and errors."""
    from oxillama.engine.engine import Engine

    return Engine.restore_bytes(data, model_path, **options)
