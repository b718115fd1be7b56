"""Which model an engine was loaded from: what it is known by, and where it can be found again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

from blake3 import blake3

from oxillama.errors import SnapshotError, SnapshotFileError, SnapshotMismatchError
from oxillama.gguf import GGUFFile
from oxillama.gguf import open as open_gguf
from oxillama.snapshot.fields import Fields

__all__ = ["PROBE_BYTES", "ModelFingerprint", "Origin", "hub_origin"]

PROBE_BYTES = 8 << 20  # of a file's head and tail

Source = str | os.PathLike[str] | bytes | bytearray | memoryview


@dataclass(frozen=True)
class ModelFingerprint:
    """What a model is known by, without reading all of it.

    file_size: bytes; of a split model, of all its files. mtime_secs: of the (first) file, Unix seconds, 0 in memory;
    copies differ in it, so it tells nothing. head_hash, tail_hash: BLAKE3 of the first and the last `probe_size` bytes
    (of the first and the last file). tensor_hash: BLAKE3 of names, shapes, types and places of all tensors; empty where
    it isn't known, in files of version 1.
    """

    file_size: int
    mtime_secs: int
    head_hash: bytes
    tail_hash: bytes
    probe_size: int = PROBE_BYTES
    tensor_hash: bytes = b""

    @classmethod
    def of(cls, source: Source, probe_size: int = PROBE_BYTES) -> Self:
        """Of a GGUF file, the first one of a split model, or of its bytes. Raises LoadError if it can't be read."""
        with open_gguf(source) as file:
            shards = file.shards
            head, tail = shards[0].data[:probe_size], shards[-1].data[-probe_size:]
            mtime = 0 if file.path is None else int(file.path.stat().st_mtime)
            first, last = (blake3(cast(Any, part)).digest() for part in (head, tail))
            return cls(file.n_bytes, mtime, first, last, probe_size, _tensor_hash(file))

    def check(self, found: ModelFingerprint, label: str) -> None:
        """Raises SnapshotMismatchError, which names the field, unless `found` is of the same model."""
        for name in ("file_size", "head_hash", "tail_hash", "tensor_hash"):
            mine, other = getattr(self, name), getattr(found, name)
            if mine != other and mine and other:
                wanted, got = (v.hex()[:16] if isinstance(v, bytes) else v for v in (mine, other))
                raise SnapshotMismatchError(
                    f"{label}: it is of another model: {name} is {wanted} there, and {got} of the one that is "
                    "loaded; give the right one as model_path"
                )

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "file_size": self.file_size, "mtime_secs": self.mtime_secs, "head_hash": self.head_hash.hex(),
            "tail_hash": self.tail_hash.hex(), "probe_size": self.probe_size, "tensor_hash": self.tensor_hash.hex(),
        }  # fmt: skip

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """The opposite of `state`. Raises SnapshotDamagedError."""
        hashes = {}
        for name in ("head_hash", "tail_hash", "tensor_hash"):
            try:
                hashes[name] = bytes.fromhex(fields.text(name))
            except ValueError:
                raise fields.wrong(name, "a hash in hexadecimal") from None
        mtime = fields.integer("mtime_secs", -(1 << 62))
        return cls(fields.integer("file_size"), mtime, probe_size=fields.integer("probe_size", 1), **hashes)


def _tensor_hash(file: GGUFFile) -> bytes:
    h = blake3()
    for name, t in file.tensors.items():
        h.update(repr((name, tuple(t.shape), t.type, t.offset, t.nbytes)).encode())
    return h.digest()


class Origin:
    """Where an engine's model is from, and its file as it was when it was loaded."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._then = _identity(source)

    @property
    def path(self) -> str | None:
        """Absolute; None of a model in memory."""
        return None if isinstance(self.source, bytes | bytearray | memoryview) else os.path.abspath(self.source)

    @cached_property
    def fingerprint(self) -> ModelFingerprint:
        """Raises SnapshotError if the file was replaced or changed since: nothing is known of what is loaded then."""
        try:
            if self._then is None or _identity(self.source) != self._then:
                raise SnapshotError(f"{self.path}: the model's file was changed since it was loaded: load it again")
            return ModelFingerprint.of(self.source)
        except OSError as error:
            raise SnapshotFileError(f"{self.path}: the model's file can't be read any more: {error}") from error


def _identity(source: Source) -> object:
    """What changes with the file; None where there is no file that could be looked at."""
    if isinstance(source, bytes | bytearray | memoryview):
        return "memory"
    try:
        info = os.stat(source)
    except (OSError, ValueError):
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def hub_origin(path: str | None) -> dict[str, str] | None:
    """Repository, file and revision of a file in the Hugging Face Hub's cache, which is laid out as
    ``models--OWNER--NAME/snapshots/REVISION/FILE``; None of any other."""
    parts = Path(path).parts if path else ()
    for i in range(len(parts) - 3):
        if parts[i].startswith("models--") and parts[i + 1] == "snapshots":
            repository = parts[i].removeprefix("models--").replace("--", "/", 1)
            return {"repo_id": repository, "revision": parts[i + 2], "filename": "/".join(parts[i + 3 :])}
    return None
