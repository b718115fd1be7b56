"""Tensors of a file as a model wants them: by name, with the shape it expects, each used once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from oxillama.gguf import GGUFFile, TensorInfo
from oxillama.gguf.pages import release_pages
from oxillama.kernels._table import kernel_formats
from oxillama.kernels.matmul import Matrix
from oxillama.kernels.rows import Vector

PIECE = 64 << 20


class Arena:
    """Memory for packed matrices, cut from large pieces.

    The kernel gives huge pages to what numpy allocates from 4 MB on, but only to whole ones inside: matrices allocated
    one by one had a third of their bytes in small pages, at whose ends hardware prefetching stops.
    """

    def __init__(self) -> None:
        self._piece = np.empty(0, np.uint8)

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        if n_bytes > PIECE:
            return np.empty(n_bytes, np.uint8)
        if n_bytes > self._piece.nbytes:
            self._piece = np.empty(PIECE, np.uint8)
        taken, self._piece = self._piece[:n_bytes], self._piece[n_bytes:]
        return taken


class Weights:
    """Hands out a file's tensors and remembers which were taken.

    ``n_bytes`` counts what the model holds beside the file; ``progress`` is called with the bytes of each tensor as it
    is taken.
    """

    def __init__(
        self, file: GGUFFile, *, repack: bool, num_threads: int, progress: Callable[[int], None] | None = None
    ) -> None:
        self._file = file
        self._repack = repack
        self._num_threads = num_threads
        self._progress = progress or (lambda n_bytes: None)
        self._unused = set(file.tensors)
        self._arena = Arena()
        self.n_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The tensor, checked; MissingTensorError or LoadError name it."""
        info = self._file.tensors.get(name)
        if info is None:
            raise MissingTensorError(f"tensor {name} is missing; architecture {self._file.metadata.arch} needs it")
        if trimmed(info.shape) != trimmed(shape):
            raise LoadError(f"tensor {name} has shape {tuple(info.shape)}; metadata ask for {shape}")
        if info.type not in kernel_formats():
            raise UnsupportedModelError(
                f"tensor {name} has format {info.type}, which has no kernels; formats that have: "
                + ", ".join(kernel_formats())
            )
        if name in self._unused:
            self._unused.remove(name)
            self._progress(info.nbytes)
        return info

    def matrix(self, name: str, *shape: int, bias: Vector | None = None) -> Matrix:
        info = self.tensor(name, shape)
        try:
            made = self._matrix(info, name, shape, bias)
        except MemoryError as e:
            raise LoadError(f"tensor {name}: no memory for its repacked copy ({e}); load with repack=False") from None
        self.n_bytes += made.nbytes
        return made

    def _matrix(self, info: TensorInfo, name: str, shape: tuple[int, ...], bias: Vector | None) -> Matrix:
        return Matrix(
            info.data,
            info.type,
            shape,
            bias=bias,
            name=name,
            repack=self._repack,
            num_threads=self._num_threads,
            release=release_pages,
            allocate=self._arena.take,
        )

    def linear(self, name: str, n_out: int, n_in: int, *, bias: bool = False) -> Matrix:
        """``name.weight`` with ``name.bias``, which may be missing unless ``bias`` is part of the model."""
        vector = self.vector if bias else self.optional_vector
        return self.matrix(f"{name}.weight", n_out, n_in, bias=vector(f"{name}.bias", n_out))

    def vector(self, name: str, n: int) -> Vector:
        return Vector(self.tensor(name, (n,)).dequantize())

    def optional_vector(self, name: str, n: int) -> Vector | None:
        return self.vector(name, n) if name in self else None

    def check_all_used(self) -> None:
        """A tensor that the model doesn't use is a part of the model that we would silently drop."""
        if self._unused:
            names = sorted(self._unused)
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise UnsupportedModelError(
                f"architecture {self._file.metadata.arch} has no use for {', '.join(names[:5])}{more}"
            )


def trimmed(shape: Sequence[int]) -> tuple[int, ...]:
    """Without leading ones, which some writers of files keep and others drop."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return tuple(shape[first:])
