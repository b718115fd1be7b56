"""Writing a model's file with an adapter in its weights."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import oxillama.gguf as gguf
from oxillama.checks import check_int
from oxillama.errors import ConfigError, LoraError, QuantError
from oxillama.gguf import GGUFFile, GGUFWriter, TensorInfo
from oxillama.gguf.formats import format_by_name
from oxillama.gguf.shards import SPLIT_KEYS
from oxillama.lora.adapter import Lora
from oxillama.lora.binding import EMBEDDING, OUTPUT, changed_tensors
from oxillama.lora.factors import Change
from oxillama.lora.registry import check_scale
from oxillama.models import load_model

__all__ = ["MergeSummary", "merge_lora"]

PIECE_VALUES = 4 << 20  # of a tensor that are changed at a time


@dataclass(frozen=True)
class MergeSummary:
    """What `merge_lora` changed: tensors with their formats before and after."""

    tensors: tuple[tuple[str, str, str], ...]


def merge_lora(
    base: str | os.PathLike[str],
    adapter: str | os.PathLike[str] | Lora,
    destination: str | os.PathLike[str],
    *,
    scale: float = 1.0,
    type: str | None = None,
    num_threads: int | None = None,
) -> MergeSummary:
    """Writes a model's file with ``scale * alpha / rank * b @ a`` added to each tensor that the adapter changes.

    A changed tensor is dequantised, added to, and quantised again, to its own format or to ``type``; of a quantised one
    this adds that format's error. All others are copied. An embedding that is the output too, and of which only one use
    is changed, gets an output matrix beside it. A split model becomes one file.

    Raises LoadError and its children for a bad model or adapter, ConfigError if ``destination`` can't be written or is
    the model itself, QuantError for a format that can't be written or doesn't fit.
    """
    scale = check_scale("scale", scale)
    threads = default_threads() if num_threads is None else check_int("num_threads", num_threads, 1, 1024)
    wanted = None if type is None else format_by_name(type).name
    lora = adapter if isinstance(adapter, Lora) else Lora.load(adapter)
    with gguf.open(base) as file:
        check_destination(file, destination)
        changes = changes_by_tensor(file, lora)
        writer = GGUFWriter(destination, alignment=file.alignment, version=file.version)
        writer.add_metadata(file.metadata, leave_out=SPLIT_KEYS)
        done = []
        for name, info, change in planned(file, changes):
            if change is None:
                writer.add_tensor(name, info)
                continue
            format = checked_format(name, info, wanted)
            writer.add_tensor(name, merged(name, info, change, scale, format, threads), info.shape, format)
            done.append((name, info.type, format))
        writer.write()
    return MergeSummary(tuple(done))


def default_threads() -> int:
    from oxillama.kernels import _threads

    return int(_threads.default_num_threads())


def check_destination(file: GGUFFile, destination: str | os.PathLike[str]) -> None:
    for shard in file.shards:
        if shard.path is not None and os.path.exists(destination) and os.path.samefile(shard.path, destination):
            raise ConfigError(f"{os.fspath(destination)} is the model itself: write to another file")


def changes_by_tensor(file: GGUFFile, lora: Lora) -> dict[str, Change]:
    """By the tensor that is written: its own name, or `OUTPUT` for the second use of an embedding."""
    model = load_model(file, repack=False)
    found: dict[str, Change] = {}
    for name, change, parts, target in changed_tensors(lora, model.spec, model.adaptable):
        both = len(parts) == len(model.adaptable[target].parts)
        place = target if both or change.lookups else OUTPUT
        if place in found:
            raise LoraError(f"{name}: the adapter changes the same weights under another name")
        found[place] = change
        if not both and change.lookups:
            found.setdefault(OUTPUT, NOTHING)
    return found


# In the place of a change of what is written unchanged beside a changed twin.
NOTHING = Change(np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32), 0.0)


def planned(file: GGUFFile, changes: dict[str, Change]) -> Iterator[tuple[str, TensorInfo, Change | None]]:
    """Every tensor of the result, in the file's order: its name, where it comes from, and its change."""
    for name, info in file.tensors.items():
        yield name, info, changes.get(name)
    if OUTPUT in changes and OUTPUT not in file.tensors:
        change = changes[OUTPUT]
        yield OUTPUT, file.tensors[EMBEDDING], None if change is NOTHING else change


def checked_format(name: str, info: TensorInfo, wanted: str | None) -> str:
    """The format of the result. Raises QuantError if it can't be written, or not in rows of this length."""
    from oxillama.kernels._table import writable_formats

    fmt = format_by_name(wanted or info.type)
    if fmt.name not in writable_formats():
        raise QuantError(
            f"{name}: quantising to {fmt.name} is not supported; give a type among {', '.join(writable_formats())}"
        )
    if info.shape[-1] % fmt.block_values:
        raise QuantError(f"{name}: rows of {info.shape[-1]} values; {fmt.name} needs a multiple of {fmt.block_values}")
    return fmt.name


def merged(
    name: str, info: TensorInfo, change: Change, scale: float, format: str, num_threads: int
) -> Callable[[], Iterator[NDArray[np.uint8]]]:
    """A function that gives the changed tensor's blocks in parts of whole rows."""

    def parts() -> Iterator[NDArray[np.uint8]]:
        from oxillama.kernels.matmul import dequantize, quantize

        n_in, row_bytes = info.shape[-1], format_by_name(info.type).nbytes(info.shape[-1])
        n_rows = math.prod(info.shape[:-1])
        step = max(1, PIECE_VALUES // n_in)
        for start in range(0, n_rows, step):
            end = min(start + step, n_rows)
            part = info.data[start * row_bytes : end * row_bytes]
            values = dequantize(part, info.type, (end - start) * n_in).reshape(-1, n_in).astype(np.float64)
            values += product_rows(change, start, end) * scale
            yield quantize(values.astype(np.float32), format, name=name, num_threads=num_threads)

    return parts


def product_rows(change: Change, start: int, end: int) -> NDArray[np.float64]:
    """Rows ``start`` to ``end`` of ``scale * b @ a``, counted through a stack; computed in double."""
    if change.a.ndim == 2:
        return (change.b[start:end].astype(np.float64) @ change.a.astype(np.float64)) * change.scale
    n_out, rows = change.b.shape[-2], []
    while start < end:
        e, first = divmod(start, n_out)
        last = min(n_out, first + end - start)
        a, b = (x[e if len(x) > 1 else 0].astype(np.float64) for x in (change.a, change.b))
        rows.append(b[first:last] @ a * change.scale)
        start += last - first
    return np.concatenate(rows)
