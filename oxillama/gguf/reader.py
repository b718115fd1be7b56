"""GGUF reader: files opened from a path (mapped, never read whole) or from memory."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from oxillama._util.pickling import stays_here
from oxillama._util.places import Place
from oxillama.errors import ConfigError, GGUFError, ModelFileError, ModelNotFoundError, OxiLlamaError
from oxillama.gguf.metadata import Metadata
from oxillama.gguf.shards import Shard, join_shards, shard_paths
from oxillama.gguf.source import FileSource
from oxillama.gguf.tensors import TensorInfo

__all__ = ["GGUFFile", "open_gguf"]


class GGUFFile:
    """An open GGUF file, or all files of a split model. Use as a context manager, or call `close`.

    overrides: metadata values in place of those in the file. After `close`, every attribute but ``path`` and this one
    raises GGUFError. Metadata, arrays, tensors and their data taken from it before stay valid: the file is unmapped
    when the last of them is gone.
    """

    __reduce_ex__ = stays_here("open the file again where it is needed, by its path")

    def __init__(self, shards: list[Shard], overrides: Mapping[str, object] | None = None) -> None:
        first = shards[0]
        self.path = first.path
        self._shards = shards
        self._metadata = Metadata(first.parsed.entries, first.label)
        self.overrides: dict[str, object] = dict(overrides or {})
        if overrides:
            self._metadata = self._metadata.replaced(overrides)
        self._tensors = join_shards(shards)

    @property
    def shards(self) -> list[Shard]:
        """The files; more than one for a split model."""
        self._check_open()
        return self._shards

    @property
    def version(self) -> int:
        """GGUF version: 2 or 3."""
        return self.shards[0].parsed.version

    @property
    def alignment(self) -> int:
        """Tensor data start at multiples of this many bytes."""
        return self.shards[0].parsed.alignment

    @property
    def n_bytes(self) -> int:
        """Size of the file, or of all files of a split model."""
        return sum(len(s.data) for s in self.shards)

    @property
    def metadata(self) -> Metadata:
        """Keys and values (of a split model, those of the first file), with overrides."""
        self._check_open()
        return self._metadata

    def override(self, overrides: Mapping[str, object]) -> None:
        """Replace or add metadata values of the open file, as with ``open_gguf(overrides=)`` (`Metadata.replaced`)."""
        self._metadata = self.metadata.replaced(overrides)
        self.overrides |= overrides

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors by name, in file order."""
        self._check_open()
        return MappingProxyType(self._tensors)

    def seen_as(self, metadata: Metadata, tensors: Iterable[TensorInfo]) -> "GGUFFile":
        """A file of the same bytes with other metadata, and of its tensors these, in this order."""
        seen = object.__new__(GGUFFile)
        seen.path, seen._shards, seen._metadata = self.path, self.shards, metadata
        seen.overrides = self.overrides
        seen._tensors = {t.name: t for t in tensors}
        return seen

    def check(self) -> None:
        """Raises ModelFileError if the file has changed since it was opened, or couldn't be read where it is mapped.

        Call it after using ``data`` of tensors, which are zeros where a file was cut off. A ``with`` block calls it at
        its end; data decoded or written by this package are checked anyway.
        """
        for shard in self._shards:
            shard.check()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._shards

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._shards = []
        self._tensors = {}
        self._metadata = Metadata({})

    def _check_open(self) -> None:
        if self.closed:
            raise GGUFError(f"{self.path or '<memory>'}: the file is closed")

    def __enter__(self) -> "GGUFFile":
        self._check_open()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if exc is None or isinstance(exc, OxiLlamaError | OSError):  # which other bytes than expected may lead to
                self.check()
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<GGUFFile {self.path or '<memory>'}{' (closed)' if self.closed else ''}>"


def open_gguf(source: Place, *, overrides: Mapping[str, object] | None = None) -> GGUFFile:
    """Open a GGUF file: version 2 or 3, little-endian.

    Everything but the tensors' values is checked here: after this, no offset or size in the file can lead outside it.
    The file must not be changed while it is open: reading it then raises ModelFileError.

    Args:
        source: a path, or the file's bytes. For a split model, the path of its first file.
        overrides: metadata values that replace the file's or are added to them (`Metadata.replaced`).

    Raises:
        ModelNotFoundError: there is no such file (or part of a split model), or it can't be read.
        GGUFError: it is no GGUF file, or a damaged one.
        UnsupportedModelError: it holds a tensor of an unknown format.
        ModelFileError: it was changed while it was read.
        ConfigError: ``source`` or ``overrides`` have the wrong type.
    """
    if overrides is not None and not isinstance(overrides, Mapping):
        raise ConfigError(f"overrides={overrides!r}; a mapping from keys to values is needed")
    if isinstance(source, bytes | bytearray | memoryview):
        return GGUFFile([Shard(_memory(source), None)], overrides)
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(f"source is a {source.__class__.__name__}; a path or bytes are needed")
    path = Path(source)
    first = _shard(path)
    return GGUFFile([first, *map(_shard, shard_paths(first))], overrides)


def _shard(path: Path) -> Shard:
    data, source = _mapped(path)
    with source.unchanged():
        return Shard(data, source)


def _memory(source: bytes | bytearray | memoryview) -> NDArray[np.uint8]:
    view = memoryview(source)
    if not view.c_contiguous:
        raise ConfigError("source is a memoryview that is not contiguous")
    data = np.frombuffer(view, np.uint8)
    data.setflags(write=False)
    return data


def _mapped(path: Path) -> tuple[NDArray[np.uint8], FileSource]:
    try:
        source = FileSource(path)
        if not source.size:
            raise GGUFError(f"{path}: the file is empty")
        return source.map(), source
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: there is no such file") from None
    except ModelFileError as e:
        raise GGUFError(str(e)) from None
    except GGUFError:
        raise
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise ModelNotFoundError(f"{str(path)!r}: the file can't be read: {reason}") from e
