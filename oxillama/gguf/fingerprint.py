"""Fingerprint of a model file: hashes of its metadata and tensors."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama._util.json_fields import Fields
from oxillama._util.lazy import lazy
from oxillama._util.places import Place
from oxillama.errors import ModelNotFoundError, OxiLlamaError, SnapshotMismatchError
from oxillama.gguf import GGUFFile
from oxillama.gguf import open as open_gguf
from oxillama.gguf.source import FileSource

__all__ = [
    "PROBE_BYTES",
    "ModelFingerprint",
    "ModelIdentity",
    "hub_origin",
]

PROBE_BYTES = 8 << 20  # bytes of a file's head and tail that are hashed
READ_BYTES = 1 << 20  # bytes read at a time

_SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True)
class ModelFingerprint:
    """Fingerprint of a model, computed without reading all of it.

    file_size: bytes; for a split model, of all its files. mtime_secs: of the (first) file, Unix seconds, 0 in memory;
    copies differ in it, so it isn't compared. head_hash, tail_hash: BLAKE3 of the first and the last `probe_size` bytes
    (of the first and the last file). tensor_hash: BLAKE3 of names, shapes, types and offsets of all tensors; empty in
    snapshots of version 1.
    """

    file_size: int
    mtime_secs: int
    head_hash: bytes
    tail_hash: bytes
    probe_size: int = PROBE_BYTES
    tensor_hash: bytes = b""

    @classmethod
    def of(cls, source: Place, probe_size: int = PROBE_BYTES) -> ModelFingerprint:
        """Fingerprint of a GGUF file, the first one of a split model, or of its bytes. Raises LoadError if it can't be
        read."""
        with open_gguf(source) as file:
            return ModelIdentity(file, probe_size).fingerprint

    @classmethod
    def of_ends(cls, path: str | os.PathLike[str]) -> ModelFingerprint:
        """Fingerprint of a file without parsing it; of a split model's first file, the head alone.

        Raises ModelNotFoundError if it can't be opened, ModelFileError if it is no regular file or can't be read.
        """
        try:
            file = FileSource(Path(path))
        except (OSError, ValueError) as error:
            if isinstance(error, OxiLlamaError):
                raise
            raise ModelNotFoundError(f"{os.fspath(path)!r}: the file can't be read: {error}") from error
        head = _digest(file, 0, min(file.size, PROBE_BYTES))
        if _SHARD.search(str(path)):
            return cls(0, 0, head, b"")
        return cls(file.size, 0, head, _digest(file, max(0, file.size - PROBE_BYTES), file.size))

    def check(self, found: ModelFingerprint, label: str, given_as: str = "model_path") -> None:
        """Raises SnapshotMismatchError, which names the field, unless `found` is that of the same model."""
        for name in ("file_size", "head_hash", "tail_hash", "tensor_hash"):
            mine, other = getattr(self, name), getattr(found, name)
            if mine != other and mine and other:
                wanted, got = (v.hex()[:16] if isinstance(v, bytes) else v for v in (mine, other))
                raise SnapshotMismatchError(
                    f"{label}: it is of another model: {name} is {wanted} there, and {got} of the one that is "
                    f"loaded; give the right one as {given_as}"
                )

    def state(self) -> dict[str, Any]:
        """The fields as JSON."""
        return {
            "file_size": self.file_size, "mtime_secs": self.mtime_secs, "head_hash": self.head_hash.hex(),
            "tail_hash": self.tail_hash.hex(), "probe_size": self.probe_size, "tensor_hash": self.tensor_hash.hex(),
        }  # fmt: skip

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """The inverse of `state`. Raises SnapshotDamagedError."""
        hashes = {}
        for name in ("head_hash", "tail_hash", "tensor_hash"):
            try:
                hashes[name] = bytes.fromhex(fields.text(name))
            except ValueError:
                raise fields.wrong(name, "a hash in hexadecimal") from None
        mtime = fields.integer("mtime_secs", -(1 << 62))
        return cls(fields.integer("file_size"), mtime, probe_size=fields.integer("probe_size", 1), **hashes)


class ModelIdentity:
    """Fingerprint of a loaded model, computed when first used.

    It is that of the loaded file, which is kept open, even if another file has its name by then. path: that of the
    file, absolute; None for a model in memory. n_parameters: values of all its tensors. n_bytes: those of its tensors.
    """

    def __init__(self, file: GGUFFile, probe_size: int = PROBE_BYTES) -> None:
        self.path = None if file.path is None else os.path.abspath(file.path)
        self.n_parameters = sum(math.prod(t.shape) for t in file.tensors.values())
        self.n_bytes = sum(t.nbytes for t in file.tensors.values())
        self._ends = [shard.source or shard.data for shard in (file.shards[0], file.shards[-1])]
        self._n_bytes, self._tensor_hash, self._probe_size = file.n_bytes, _tensor_hash(file), probe_size
        if file.path is None:  # computed now, so that the bytes needn't stay in memory for it
            _ = self.fingerprint
            self._ends = []

    @lazy
    def fingerprint(self) -> ModelFingerprint:
        """The fingerprint. Raises ModelFileError if the file has changed since it was opened, or can't be read."""
        first, last = self._ends
        n_first, n_last = (end.size for end in (first, last))
        head = _digest(first, 0, min(n_first, self._probe_size))
        tail = _digest(last, max(0, n_last - self._probe_size), n_last)
        mtime = first.time // 10**9 if isinstance(first, FileSource) else 0
        return ModelFingerprint(self._n_bytes, mtime, head, tail, self._probe_size, self._tensor_hash)


def _digest(end: FileSource | NDArray[np.uint8], start: int, stop: int) -> bytes:
    """BLAKE3 of the bytes from start to stop."""
    if not isinstance(end, FileSource):
        return blake3(cast(Any, end[start:stop])).digest()
    h, buffer = blake3(), np.empty(min(READ_BYTES, stop - start), np.uint8)
    for at in range(start, stop, READ_BYTES):
        part = buffer[: stop - at]
        end.read(at, part)
        h.update(cast(Any, part))
    return h.digest()


def _tensor_hash(file: GGUFFile) -> bytes:
    h = blake3()
    for name, t in file.tensors.items():
        h.update(repr((name, tuple(t.shape), t.type, t.offset, t.nbytes)).encode())
    return h.digest()


def hub_origin(path: str | None) -> dict[str, str] | None:
    """Repository, file and revision of a file in the Hugging Face Hub's cache, which is laid out as
    ``models--OWNER--NAME/snapshots/REVISION/FILE``; None for any other file."""
    parts = Path(path).parts if path else ()
    for i in range(len(parts) - 3):
        if parts[i].startswith("models--") and parts[i + 1] == "snapshots":
            repository = parts[i].removeprefix("models--").replace("--", "/", 1)
            return {"repo_id": repository, "revision": parts[i + 2], "filename": "/".join(parts[i + 3 :])}
    return None
