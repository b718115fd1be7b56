"""Split models: files ``NAME-00001-of-0000N.gguf``.

The first file holds all metadata. Each holds ``split.no`` (from 0), ``split.count`` and ``split.tensors.count``, the
number of tensors in all files together.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import GGUFError, ModelNotFoundError
from oxillama.gguf.arrays import in_memory
from oxillama.gguf.metadata import Metadata
from oxillama.gguf.parse import Parsed, parse
from oxillama.gguf.source import FileSource
from oxillama.gguf.tensors import TensorInfo
from oxillama.gguf.values import shown

__all__ = ["SPLIT_KEYS", "Shard", "join_shards", "shard_paths"]

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class Shard:
    """One file of a model: its bytes and what was parsed from them."""

    __slots__ = ("data", "parsed", "path", "source")

    def __init__(self, data: NDArray[np.uint8], source: FileSource | None) -> None:
        self.data = data
        self.source = source
        self.path = None if source is None else source.path
        self.parsed: Parsed = parse(data, self.label, in_memory if source is None else source.check)

    def check(self) -> None:
        """Raises ModelFileError if the file was changed since it was opened."""
        if self.source is not None:
            self.source.check()

    def unchanged(self) -> AbstractContextManager[None]:
        """See `FileSource.unchanged`."""
        return nullcontext() if self.source is None else self.source.unchanged()

    @property
    def label(self) -> str:
        """The file's name, for messages."""
        return "<memory>" if self.path is None else str(self.path)

    def tensors(self) -> dict[str, TensorInfo]:
        """The tensors of this file, by name, in file order."""
        found = {}
        for name, t in self.parsed.tensors.items():
            start = self.parsed.data_start + t.offset
            data = self.data[start : start + t.nbytes]
            found[name] = TensorInfo.of(name, t.shape, t.format, start, self.path, data, self.source)
        return found


def shard_paths(first: Shard) -> list[Path]:
    """The other files of the split model whose first file this is; none if it isn't split.

    Raises:
        GGUFError: this is not the first file, or its name doesn't have the form for that many parts.
        ModelNotFoundError: a file is missing.
    """
    number, count = _numbers(first)
    if count == 1:
        return []
    path = first.path
    match = _NAME.fullmatch(path.name) if path is not None else None
    if path is None or match is None or int(match["count"]) != count or int(match["number"]) != number + 1:
        wanted = f"its name must be NAME-{number + 1:05}-of-{count:05}.gguf, beside the others"
        raise GGUFError(f"{first.label}: part {number + 1} of a model that is split into {count}; {wanted}")
    paths = [path.with_name(f"{match['stem']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    if number:
        raise GGUFError(f"{path}: part {number + 1} of {count} of a split model; open the first: {paths[0]}")
    for i, p in enumerate(paths):
        if not p.exists():
            raise ModelNotFoundError(f"{p}: part {i + 1} of {count} of the split model {path} is missing")
    return paths[1:]


def join_shards(shards: list[Shard]) -> dict[str, TensorInfo]:
    """All tensors, by name; GGUFError unless the files belong together."""
    number, count = _numbers(shards[0])
    if len(shards) != count:
        part = f"part {number + 1} of a model that is split into {count}"
        raise GGUFError(f"{shards[0].label}: {part}; open it by the path of its first file")
    tensors: dict[str, TensorInfo] = {}
    for i, shard in enumerate(shards):
        if i and _numbers(shard) != (i, count):
            found = f"part {_numbers(shard)[0] + 1} of {_numbers(shard)[1]}"
            raise GGUFError(f"{shard.label}: its metadata say {found}; part {i + 1} of {count} is needed")
        for name, info in shard.tensors().items():
            if name in tensors:
                raise GGUFError(f"{shard.label}: tensor {shown(name)} is also in {tensors[name].path}")
            tensors[name] = info
    if count > 1:
        total = _metadata(shards[0]).get_int("split.tensors.count")
        if total != len(tensors):
            raise GGUFError(f"{shards[0].label}: split.tensors.count is {total}; its {count} files hold {len(tensors)}")
    return tensors


def _metadata(shard: Shard) -> Metadata:
    return Metadata({k: e for k, e in shard.parsed.entries.items() if k in SPLIT_KEYS}, shard.label)


def _numbers(shard: Shard) -> tuple[int, int]:
    """``split.no`` and ``split.count``, (0, 1) if the file isn't part of a split model."""
    metadata = _metadata(shard)
    count = metadata.get_int("split.count", 1, minimum=0, maximum=65535)
    number = metadata.get_int("split.no", 0, minimum=0, maximum=65535)
    if count > 1 and number >= count:
        raise GGUFError(f"{shard.label}: split.no is {number}, split.count {count}; parts are counted from 0")
    return (number, count) if count > 1 else (0, 1)
