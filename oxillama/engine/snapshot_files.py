"""Snapshots as functions, as `json` and `pickle` have them: `oxillama.snapshot.dump`, `dumps`, `load`, `loads`."""

from __future__ import annotations

import os
from typing import Any

from oxillama.config import ModelSource
from oxillama.engine.engine import Engine

__all__ = ["dump", "dumps", "load", "loads"]


def dump(engine: Engine, path: str | os.PathLike[str], **options: Any) -> None:
    """`engine.snapshot(path)`, with its options and errors."""
    engine.snapshot(path, **options)


def dumps(engine: Engine, **options: Any) -> bytes:
    """`engine.snapshot_bytes()`, with its options and errors."""
    return engine.snapshot_bytes(**options)


def load(path: str | os.PathLike[str], *, model_path: ModelSource | Engine = None, **options: Any) -> Engine:
    """`Engine.restore(path)`, with its options and errors."""
    return Engine.restore(path, model_path, **options)


def loads(data: bytes | bytearray | memoryview, *, model_path: ModelSource | Engine = None, **options: Any) -> Engine:
    """`Engine.restore_bytes(data)`, with its options and errors."""
    return Engine.restore_bytes(data, model_path, **options)
