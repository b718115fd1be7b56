"""What a model is known by, and where it can be found again."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from blake3 import blake3

from oxillama.errors import SnapshotMismatchError
from oxillama.gguf import GGUFFile
from oxillama.gguf import open as open_gguf
from oxillama.gguf.pages import release_pages
from oxillama.snapshot.fields import Fields

__all__ = ["PROBE_BYTES", "ModelFingerprint", "hub_origin"]

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
            return cls.of_file(file, probe_size)

    @classmethod
    def of_file(cls, file: GGUFFile, probe_size: int = PROBE_BYTES) -> Self:
        """Of an open file, as it is mapped."""
        head, tail = file.shards[0].data[:probe_size], file.shards[-1].data[-probe_size:]
        first, last = (blake3(cast(Any, part)).digest() for part in (head, tail))
        for part in (head, tail):
            release_pages(part)
        return cls(file.n_bytes, _mtime(file.path), first, last, probe_size, _tensor_hash(file))

    def check(self, found: ModelFingerprint, label: str, given_as: str = "model_path") -> None:
        """Raises SnapshotMismatchError, which names the field, unless `found` is of the same model."""
        for name in ("file_size", "head_hash", "tail_hash", "tensor_hash"):
            mine, other = getattr(self, name), getattr(found, name)
            if mine != other and mine and other:
                wanted, got = (v.hex()[:16] if isinstance(v, bytes) else v for v in (mine, other))
                raise SnapshotMismatchError(
                    f"{label}: it is of another model: {name} is {wanted} there, and {got} of the one that is "
                    f"loaded; give the right one as {given_as}"
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


def _mtime(path: Path | None) -> int:
    """0 where it can't be had."""
    with contextlib.suppress(OSError):
        return 0 if path is None else int(path.stat().st_mtime)
    return 0


def _tensor_hash(file: GGUFFile) -> bytes:
    h = blake3()
    for name, t in file.tensors.items():
        h.update(repr((name, tuple(t.shape), t.type, t.offset, t.nbytes)).encode())
    return h.digest()


def hub_origin(path: str | None) -> dict[str, str] | None:
    """Repository, file and revision of a file in the Hugging Face Hub's cache, which is laid out as
    ``models--OWNER--NAME/snapshots/REVISION/FILE``; None of any other."""
    parts = Path(path).parts if path else ()
    for i in range(len(parts) - 3):
        if parts[i].startswith("models--") and parts[i + 1] == "snapshots":
            repository = parts[i].removeprefix("models--").replace("--", "/", 1)
            return {"repo_id": repository, "revision": parts[i + 2], "filename": "/".join(parts[i + 3 :])}
    return None
