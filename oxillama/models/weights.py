"""Tensors of a file as a model wants them: by name, with the shape it expects, each used once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from oxillama.gguf import GGUFFile, Metadata, TensorInfo
from oxillama.gguf.pages import release_pages
from oxillama.gguf.source import FileSource
from oxillama.kernels._table import kernel_formats, tier
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Vector
from oxillama.models.adaptable import Adaptable, Part, Share, all_of_it, one_of_stack, rows
from oxillama.models.linear import Linear
from oxillama.models.table import Table

COMMON = "common"  # arithmetic: the same bits on every CPU
PIECE = 64 << 20
CACHED_BYTES = 4 << 20  # of a file's tensors at most that cores keep in caches of their own from token to token


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


@dataclass(frozen=True, eq=False)
class Stored:
    """A matrix and where its bytes begin in a file; no ``source``: they are in memory.

    offset: -1 if they are arranged in another way than in the file. in_panels: they are panels, of a packed file.
    """

    matrix: Matrix
    source: FileSource | None
    offset: int
    in_panels: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.matrix.panels_nbytes if self.in_panels else self.matrix.file_nbytes

    def load(self, buffer: NDArray[np.uint8]) -> None:
        """Reads the bytes into memory, from where the matrix takes them: uint8 [nbytes]. Raises ModelFileError."""
        if self.source is not None:
            self.source.read(self.offset, buffer)
            (self.matrix.hold_panels if self.in_panels else self.matrix.hold)(buffer)


class Weights:
    """Hands out a file's tensors and remembers which were taken.

    Matrices stay where the file is mapped until :meth:`repack`: what is missing, too much or misshapen is found before
    anything large is allocated.
    """

    def __init__(self, file: GGUFFile, *, portable: bool = False) -> None:
        """`portable`: no matrix is multiplied by instructions whose bits other CPUs don't give."""
        self._file, self._portable = file, portable
        self._unused = set(file.tensors)
        self._n_bytes = sum(t.nbytes for t in file.tensors.values())
        self._stored: list[Stored] = []
        self._held_values = 0
        self._bare: list[Matrix] = []
        self._optional: dict[tuple[str, bool], str] = {}
        self.adaptable: dict[str, Adaptable] = {}

    @property
    def metadata(self) -> Metadata:
        """The file's keys and values."""
        return self._file.metadata

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
        self._unused.discard(name)
        return info

    def has(self, name: str) -> bool:
        """Whether the file has a tensor that some models of its architecture go without: in all layers or in none."""
        found = name in self
        self._optional[re.sub(r"\bblk\.\d+", "blk", name), found] = name
        return found

    def values(self, name: str, *shape: int) -> NDArray[np.float32]:
        """A small tensor's values, of the shape that is asked for: files may have more or fewer leading ones."""
        found = self.tensor(name, shape).dequantize().reshape(shape)
        self._held_values += found.nbytes
        return found

    def n_values(self, name: str) -> int:
        """Number of values of a tensor in the file, for the rare size that no key has."""
        return self._file.tensors[name].n_values

    def matrix(self, name: str, *shape: int, bias: Vector | None = None) -> Matrix:
        info = self.tensor(name, shape)
        made = self._matrix(info, name, shape, bias)
        self.adapts(name, shape, made)
        return made

    def table(self, name: str, shape: tuple[int, int]) -> Table:
        """A tensor whose rows are looked up."""
        made = Table(self.tensor(name, shape), shape[1])
        self.adapts(name, shape, made)
        return made

    def adapts(
        self, name: str, shape: tuple[int, ...], whole: Matrix | Table | Linear, share: Share = all_of_it
    ) -> None:
        """Notes what a tensor of this shape became, or a part of it."""
        self.adaptable.setdefault(name, Adaptable(shape)).parts.append(Part(whole, share))

    def _matrix(
        self, info: TensorInfo, name: str, shape: tuple[int, ...], bias: Vector | None, first: int = 0, end: int = -1
    ) -> Matrix:
        """A tensor, or its bytes from ``first`` to ``end``."""
        data = info.data if end < 0 else info.data[first:end]
        made = Matrix(data, info.type, shape, bias=bias, name=name, repack=False, rounds=not self._portable)
        self._keep(made, info.source, info.offset + first)
        return made

    @property
    def arithmetic(self) -> str:
        """Name of the arithmetic that products have: COMMON, or that of bfloat16 in a CPU's tier."""
        return f"bf16 {tier()}" if any(s.matrix.rounds for s in self._stored) else COMMON

    def _keep(self, made: Matrix, source: FileSource | None, offset: int) -> None:
        made.from_memory = self._n_bytes > CACHED_BYTES
        self._stored.append(Stored(made, source, offset))

    def rearranged(self, name: str, data: bytes, type: str, *shape: int) -> Matrix:
        """A matrix made of the tensor ``name``, whose bytes are not as the file has them."""
        rounds = not self._portable
        made = Matrix(np.frombuffer(data, np.uint8), type, shape, name=name, repack=False, rounds=rounds)
        self._keep(made, None, -1)
        self._bare.append(made)
        return made

    def linear(self, name: str, n_out: int, n_in: int, *, bias: bool = False) -> Matrix:
        """``name.weight`` with ``name.bias``, which may be missing unless ``bias`` is part of the model."""
        vector = self.vector if bias else self.optional_vector
        return self.matrix(f"{name}.weight", n_out, n_in, bias=vector(f"{name}.bias", n_out))

    def linears(self, name: str, sizes: Sequence[int], n_in: int, *, bias: bool = False) -> list[Matrix]:
        """Several matrices whose rows ``name.weight`` holds one below the other, and ``name.bias`` likewise."""
        total = sum(sizes)
        info = self.tensor(f"{name}.weight", (total, n_in))
        values = None
        if bias or self.has(f"{name}.bias"):
            values = self.values(f"{name}.bias", total)
        row_bytes = info.nbytes // total
        made, first = [], 0
        for n in sizes:
            part = None if values is None else Vector(values[first : first + n])
            place = first * row_bytes, (first + n) * row_bytes
            made.append(self._matrix(info, f"{name}.weight", (n, n_in), part, *place))
            self.adapts(f"{name}.weight", (total, n_in), made[-1], rows(first, n))
            first += n
        return made

    def stack(self, name: str, n: int, n_out: int, n_in: int) -> list[Matrix]:
        """Matrices of one shape, each of which is used by itself."""
        shape = n, n_out, n_in
        info = self.tensor(f"{name}.weight", shape)
        size, made = info.nbytes // n, []
        for i in range(n):
            made.append(self._matrix(info, f"{name}.weight", (n_out, n_in), None, i * size, (i + 1) * size))
            self.adapts(f"{name}.weight", shape, made[-1], one_of_stack(i))
        return made

    def vector(self, name: str, n: int) -> Vector:
        return Vector(self.values(name, n))

    def optional_vector(self, name: str, n: int) -> Vector | None:
        return self.vector(name, n) if self.has(name) else None

    def leave_out(self, prefix: str) -> None:
        """Tensors that belong to no part of what is computed, as the layers that predict tokens further ahead."""
        self._unused = {name for name in self._unused if not name.startswith(prefix)}

    def unread(self, name: str) -> None:
        """A matrix that a file may have though nothing reads it: adapters may change it, without effect."""
        if name in self:
            self.leave_out(name)
            self.adaptable[name] = Adaptable(tuple(self._file.tensors[name].shape))

    def check_all_used(self) -> None:
        """A tensor that the model doesn't use is a part of the model that we would silently drop.

        So is one that some layers have and others don't.
        """
        for (kind, found), name in self._optional.items():
            if not found and (kind, True) in self._optional:
                raise MissingTensorError(f"tensor {name} is missing; the file has {self._optional[kind, True]}")
        if self._unused:
            names = sorted(self._unused)
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise UnsupportedModelError(
                f"architecture {self._file.metadata.arch} has no use for {', '.join(names[:5])}{more}"
            )

    @property
    def n_bytes(self) -> int:
        """Bytes held beside the file: panels, and what is in none but not mapped either."""
        return sum(s.matrix.nbytes for s in self._stored) + sum(w.raw_nbytes for w in self._bare)

    @property
    def stored(self) -> list[Stored]:
        """The matrices in the order in which they were taken, and where their bytes are."""
        return self._stored

    @property
    def sources(self) -> list[FileSource]:
        """The files in which matrices are."""
        return list(dict.fromkeys(s.source for s in self._stored if s.source is not None))

    @property
    def n_value_bytes(self) -> int:
        """Bytes of norms, biases and the like, which are in memory in any case."""
        return self._held_values

    def repack(self, num_threads: int, progress: Callable[[int], None] | None = None) -> None:
        """Moves all matrices into panels. ``progress`` gets the bytes of each when it is done."""
        arena = Arena()
        for stored in self._stored:
            w = stored.matrix
            n_bytes = w.raw_nbytes
            try:
                w.repack(num_threads=num_threads, release=release_pages, allocate=arena.take)
            except MemoryError as e:
                message = f"tensor {w.name}: no memory for its repacked copy ({e}); load with repack=False"
                raise LoadError(message) from None
            if not w.repacked and stored.source is not None:  # or it would be gone with the end of the file
                self._bare.append(w)
                stored.load(arena.take(n_bytes))
            if progress is not None:
                progress(n_bytes)

    def take(self, parts: Sequence[NDArray[np.uint8]]) -> None:
        """Lets all matrices, in the order of `stored`, use these bytes: panels where it has them, else as in files."""
        for stored, part in zip(self._stored, parts, strict=True):
            (stored.matrix.hold_panels if stored.matrix.has_panels else stored.matrix.hold)(part)
        self._bare = []

    def move_to(self, source: FileSource, offsets: Sequence[int]) -> None:
        """All matrices, in the order of `stored`, are in a packed file from now on, from where a pager reads them."""
        self._stored = [
            Stored(stored.matrix, source, offset, in_panels=stored.matrix.has_panels)
            for stored, offset in zip(self._stored, offsets, strict=True)
        ]
        self._bare = []


def trimmed(shape: Sequence[int]) -> tuple[int, ...]:
    """Without leading ones, which some writers of files keep and others drop."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return tuple(shape[first:])


def counted(progress: Callable[[int, int], object], total: int) -> Callable[[int], None]:
    """A function of the bytes of one tensor, which tells `progress` those of all so far."""
    done = 0

    def add(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        progress(done, total)

    return add
