"""Functions beside `Engine`: loading from the Hugging Face Hub, and snapshots as `json` and `pickle` have them."""

from __future__ import annotations

import os
from typing import Any, Unpack

import oxillama.hub as hub
from oxillama._util.checks import check_keywords
from oxillama.config import EngineOptions, ModelSource
from oxillama.engine.engine import Engine

__all__ = [
    "dump",
    "dumps",
    "from_hub",
    "load",
    "loads",
]


def from_hub(repo_id: str, filename: str, *, revision: str | None = None, **fields: Unpack[EngineOptions]) -> Engine:
    """Loads a GGUF file of a repository on the Hugging Face Hub, downloading it unless it is in the local cache.

    repo_id: "owner/name". filename: the file's path in it; of a split model, its first file. revision: branch, tag or
    commit. fields: those of `oxillama.load`. The Hub's own environment variables count: HF_HUB_OFFLINE=1 uses the cache
    alone, HF_HOME and HF_TOKEN as usual.

    Raises ConfigError for what can't be such names; ModelNotFoundError if there is no such repository, revision or
    file, or it is not in the cache and can't be fetched; LoadError for other trouble with the Hub; what `oxillama.load`
    raises.
    """
    check_keywords("from_hub", fields, ("repo_id", "filename", "revision", *EngineOptions.__annotations__))
    return Engine.load(hub.download(repo_id, filename, revision=revision), **fields)


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
