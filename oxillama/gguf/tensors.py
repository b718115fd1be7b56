"""Tensors of an open GGUF file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.gguf.formats import Format
from oxillama.gguf.source import FileSource

__all__ = ["PLAIN_DTYPES", "TensorInfo"]

# Formats whose values are numbers of numpy.
PLAIN_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}


@dataclass(frozen=True, slots=True, eq=False)
class TensorInfo:
    """Name, shape, format and place of a tensor; its bytes are a view of the file.

    Attributes:
        name: as in the file.
        shape: outermost dimension first: a weight matrix is ``(n_out, n_in)``, and rows lie one after another.
        type: the format's name, such as ``"Q4_K"``.
        type_id: the format's GGUF id.
        offset: the tensor's first byte in its file.
        nbytes: size of the data.
        path: the file that holds it (for a split model, one of several); None if it was read from memory.
        data: uint8 ``[nbytes]``, read-only, without a copy. Aligned in memory as in the file (bytes in memory: not
            aligned). Keeps the file mapped as long as it lives; zeros where the file was cut off, which `check`
            detects.
        source: the file, kept open; None if it was read from memory.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    type_id: int
    offset: int
    nbytes: int
    path: Path | None
    data: NDArray[np.uint8] = field(repr=False)
    source: FileSource | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        shape: tuple[int, ...],
        fmt: Format,
        offset: int,
        path: Path | None,
        data: NDArray[np.uint8],
        source: FileSource | None = None,
    ) -> "TensorInfo":
        """A tensor of a format and its bytes."""
        return cls(name, shape, fmt.name, fmt.id, offset, len(data), path, data, source)

    @property
    def n_values(self) -> int:
        """Number of values: the product of the shape."""
        n = 1
        for d in self.shape:
            n *= d
        return n

    def check(self) -> None:
        """Raises ModelFileError if the file was changed since it was opened, or couldn't be read where it is mapped."""
        if self.source is not None:
            self.source.check()

    def dequantize(self) -> NDArray[np.float32]:
        """The values as a new float32 array of ``shape``.

        Raises QuantError if the format has no kernel, ModelFileError if the file was changed.
        """
        if self.source is not None:
            self.source.watch()
        if self.type in PLAIN_DTYPES:
            found = self.data.view(PLAIN_DTYPES[self.type]).astype(np.float32).reshape(self.shape)
        else:
            from oxillama.kernels import matmul

            found = matmul.dequantize(self.data, self.type, self.n_values).reshape(self.shape)
        self.check()
        return found
