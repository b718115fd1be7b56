"""Safetensors reader: a file has 8 bytes with the length of a header in JSON, the header, and the tensors' bytes.

https://huggingface.co/docs/safetensors: offsets count from the header's end; the tensors fill the rest without holes.
"""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import LoraError, ModelNotFoundError, UnsupportedModelError

__all__ = ["SafeTensor", "read_safetensors"]

MAX_HEADER = 100 << 20  # the limit of the format's own library
SIZES = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class SafeTensor:
    """One entry of the header; the bytes lie at ``start`` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class SafeTensors:
    """An open file with a checked header: no tensor lies outside the file. Values are read on request."""

    def __init__(self, file: BinaryIO, path: Path, tensors: dict[str, SafeTensor]) -> None:
        self._file, self._path, self.tensors = file, path, tensors

    def values(self, name: str) -> NDArray[np.float32]:
        """A tensor's values as float32, which holds all of F32, F16 and BF16. UnsupportedModelError for other types."""
        t = self.tensors[name]
        if t.dtype not in SIZES:
            raise UnsupportedModelError(f"{self._path}: {name} is of type {t.dtype}; supported: {', '.join(SIZES)}")
        raw = os.pread(self._file.fileno(), t.nbytes, t.start)
        if len(raw) != t.nbytes:
            raise LoraError(f"{self._path}: {name} ends after {len(raw)} of {t.nbytes} bytes: the file was cut")
        if t.dtype == "BF16":
            wide = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
            return wide.view(np.float32).reshape(t.shape)
        return np.frombuffer(raw, "<f4" if t.dtype == "F32" else "<f2").astype(np.float32).reshape(t.shape)

    def __enter__(self) -> SafeTensors:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def open_file(path: Path) -> BinaryIO:
    """Opens a file. Raises ModelNotFoundError if it can't be read, LoraError unless it is a regular file, since a pipe
    may never end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise LoraError(f"{path}: this is not a regular file; one that PEFT wrote is needed")
        return path.open("rb")
    except OSError as e:
        raise ModelNotFoundError(f"{path}: the file can't be read: {e.strerror}") from e


def read_safetensors(path: Path) -> SafeTensors:
    """Opens a file and checks its header.

    Raises ModelNotFoundError if it can't be read, LoraError, which names the place, if it is damaged.
    """
    file = open_file(path)
    try:
        size = os.fstat(file.fileno()).st_size
        return SafeTensors(file, path, read_header(file, path, size))
    except BaseException:
        file.close()
        raise


def read_header(file: BinaryIO, path: Path, size: int) -> dict[str, SafeTensor]:
    length = int.from_bytes(file.read(8), "little") if size >= 8 else -1
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise LoraError(f"{path}: {size} bytes can't hold a header of {length}: this is no safetensors file, or cut")
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as e:
        raise LoraError(f"{path}: the header is no JSON: {e}") from None
    if not isinstance(header, dict):
        raise LoraError(f"{path}: the header is a {type(header).__name__}; an object is needed")
    said = header.get("__metadata__", {})
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        raise LoraError(f"{path}: __metadata__ must map names to text")
    tensors = {name: entry(path, name, value, 8 + length) for name, value in header.items() if name != "__metadata__"}
    check_places(path, tensors, 8 + length, size)
    return tensors


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def entry(path: Path, name: str, value: Any, first: int) -> SafeTensor:
    """One tensor of the header, checked in itself."""
    where = f"{path}: tensor {name[:200]!r}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise LoraError(f"{where}: dtype, shape and data_offsets are needed")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or not are_sizes(shape) or len(shape) > 8:
        raise LoraError(f"{where}: a dtype and a shape of at most 8 sizes are needed")
    if not are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LoraError(f"{where}: data_offsets must be two places in order")
    nbytes = offsets[1] - offsets[0]
    if dtype in SIZES and nbytes != math.prod(shape) * SIZES[dtype]:
        raise LoraError(f"{where}: {nbytes} bytes for shape {tuple(shape)} of {dtype}")
    return SafeTensor(name, dtype, tuple(shape), first + offsets[0], nbytes)


def are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in values)


def check_places(path: Path, tensors: dict[str, SafeTensor], start: int, size: int) -> None:
    """Raises LoraError unless the tensors fill the file without overlap."""
    for t in sorted(tensors.values(), key=lambda t: (t.start, t.nbytes)):
        if t.start != start:
            raise LoraError(
                f"{path}: tensor {t.name[:200]!r} starts at byte {t.start}, and the one before ends at {start}"
            )
        start += t.nbytes
    if start != size:
        raise LoraError(f"{path}: the tensors end at byte {start}, and the file has {size}: it was cut, or has more")
