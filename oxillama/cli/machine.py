"""Facts about the machine and the process that decide how fast a model runs, read from Linux; each may be missing."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from oxillama.cli.contention import Contention, Watch
from oxillama.kernels.matmul import linear
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Workspace

__all__ = ["Bandwidth", "Limit", "cpu_features", "cpu_name", "huge_pages", "limits", "openmp_libraries", "read_speed"]

# Of those that /proc/cpuinfo lists: what tiers ask for, and what tells a reader which CPU this is.
FEATURES = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
    *("avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)
OPENMP = re.compile(r"/(lib(?:gomp|omp|iomp5)\b[^/]*\.(?:so|dylib)[^/]*)$")
MIB = 1 << 20
# A matrix that no cache holds: rows of 64 KiB, 256 MiB of them, more where the last level of cache is larger. Read from
# one end to the other again and again, twice the size of a cache leaves nothing of it there.
ROW_VALUES, LEAST_BYTES, MOST_BYTES = 16 << 10, 256 * MIB, 1024 * MIB
PART_OF_MEMORY = 8  # what is available must be this many times the matrix, which is there twice while it is packed


@dataclass(frozen=True)
class Limit:
    """A resource limit of the process, bytes or a number; None means unlimited."""

    name: str
    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second that the kernel of F32 matrices reads, the best pass of each; `threads` those of the second.

    one_median, all_median: of the median pass, which is slower the more other programs interfere. contention: what was
    taken of the CPUs meanwhile.
    """

    one: float
    all: float
    threads: int
    n_bytes: int
    one_median: float
    all_median: float
    contention: Contention


def cpu_name(root: str | Path = "/") -> str:
    """Name of the CPU by the kernel; empty where it has none, as on most ARM machines."""
    found = re.search(r"^model name\s*:\s*(.+)$", _text(Path(root) / "proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else ""


def cpu_features(root: str | Path = "/") -> tuple[str, ...]:
    """Features in FEATURES that the first CPU has, in their order."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _text(Path(root) / "proc/cpuinfo"), re.MULTILINE)
    have = set(found[1].split()) if found else set()
    return tuple(name for name in FEATURES if name in have)


def openmp_libraries(root: str | Path = "/") -> tuple[str, ...]:
    """Paths of the OpenMP libraries in this process, in the order of their addresses."""
    paths = (line.split(maxsplit=5)[-1] for line in _text(Path(root) / "proc/self/maps").splitlines())
    return tuple(dict.fromkeys(path for path in paths if OPENMP.search(path)))


def huge_pages(root: str | Path = "/") -> str | None:
    """The mode of transparent huge pages: always, madvise or never; None where the kernel has none."""
    text = _text(Path(root) / "sys/kernel/mm/transparent_hugepage/enabled")
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None


def limits() -> Iterator[Limit]:
    """Resource limits that an engine or a server can run into."""
    for name in ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC"):
        if hasattr(resource, name):
            ends = (None if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(getattr(resource, name)))
            yield Limit(name, *ends)


def last_cache_bytes(root: str | Path = "/") -> int:
    """Size of the largest cache of the first CPU; 0 if unknown."""
    folder = Path(root) / "sys/devices/system/cpu/cpu0/cache"
    texts = (_text(folder / f"index{i}/size").strip() for i in range(5))
    units = {"K": 1 << 10, "M": MIB, "G": MIB << 10, "": 1}
    found = (re.fullmatch(r"(\d{1,9})([KMG]?)", text) for text in texts)
    return max((int(m[1]) * units[m[2]] for m in found if m), default=0)


def read_speed(seconds: float, threads: int, available: int | None, root: str | Path = "/") -> Bandwidth | None:
    """Measures how fast one thread and `threads` of them stream an F32 matrix that meets a single row, as decoding
    does.

    seconds: for both measurements, half each; one pass is made in any case. available: bytes of memory that may be had;
    None if unknown. Returns None where a matrix that no cache holds would take too much of them.
    """
    n_bytes = min(max(LEAST_BYTES, 2 * last_cache_bytes(root)), MOST_BYTES)
    if available is not None and available < PART_OF_MEMORY * n_bytes:
        return None
    weights = np.ones((n_bytes // (4 * ROW_VALUES), ROW_VALUES), np.float32)
    n_bytes = weights.nbytes
    # Panels: to put rows as they are stored into panels takes longer than to read them.
    matrix = Matrix(weights.view(np.uint8).reshape(-1), "F32", weights.shape, name="doctor")
    row = np.ones((1, ROW_VALUES), np.float32)
    del weights
    watch = Watch(root)
    one = _passes(matrix, row, 1, seconds / 2)
    several = one if threads == 1 else _passes(matrix, row, threads, seconds / 2)
    best, medians = (n_bytes / min(one), n_bytes / min(several)), (n_bytes / median(one), n_bytes / median(several))
    return Bandwidth(*best, threads, n_bytes, *medians, watch.end())


def _passes(matrix: Matrix, row: NDArray[np.float32], threads: int, seconds: float) -> list[float]:
    """Seconds of each pass."""
    workspace, found = Workspace(threads), list[float]()
    x, end = workspace.from_array(row), time.perf_counter() + seconds
    while True:
        mark, started = workspace.mark(), time.perf_counter()
        linear(x, matrix)
        now = time.perf_counter()
        workspace.release(mark)
        found.append(now - started)
        if now >= end:
            return found


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
