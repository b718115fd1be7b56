"""Merging of adapters into the weights of a model's file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import oxillama.gguf as gguf
from oxillama.errors import ConfigError, LoraError, QuantError
from oxillama.gguf import GGUFFile, GGUFWriter, TensorInfo
from oxillama.gguf.formats import format_by_name
from oxillama.gguf.recoding import check_destination, check_threads
from oxillama.gguf.shards import SPLIT_KEYS
from oxillama.lora.adapter import Lora, as_lora
from oxillama.lora.binding import EMBEDDING, OUTPUT, changed_tensors
from oxillama.lora.factors import Change
from oxillama.lora.peft import CONFIG, WEIGHTS
from oxillama.lora.registry import check_scale
from oxillama.models import load_model

__all__ = ["MergeSummary", "merge_lora"]

Adapter = str | os.PathLike[str] | Lora

PIECE_VALUES = 4 << 20  # values of a tensor that are changed at a time


@dataclass(frozen=True)
class MergeSummary:
    """Changes of `merge_lora`: tensors with their formats before and after."""

    tensors: tuple[tuple[str, str, str], ...]


def merge_lora(
    base: str | os.PathLike[str],
    adapter: Adapter | SequenceOf[Adapter | tuple[Adapter, float]],
    destination: str | os.PathLike[str],
    *,
    scale: float = 1.0,
    type: str | None = None,
    num_threads: int | None = None,
) -> MergeSummary:
    """Writes a model's file with ``scale * alpha / rank * b @ a`` added to each tensor that an adapter changes.

    adapter: a file, a folder, a `Lora`, or a list of these and of (adapter, scale); ``scale`` is the default.
    A changed tensor is dequantised, added to, and quantised again, to its own format or to ``type``; of a quantised one
    this adds that format's error. All others are copied. If an embedding is also the output, and only one of the uses
    is changed, the result has a separate output matrix. A split model becomes one file.

    Raises LoadError and its children for a bad model or adapter, ConfigError if ``destination`` can't be written or is
    the model or the adapter itself, OSError for a full disk, QuantError for a format that can't be written or doesn't
    fit.
    """
    scale = check_scale("scale", scale)
    threads = check_threads(num_threads)
    wanted = None if type is None else format_by_name(type).name
    loras = read_adapters(adapter, scale)
    with gguf.open(base) as file:
        check_destination(file, destination, *(place for lora, _ in loras for place in places(lora)))
        changes = changes_by_tensor(file, loras)
        writer = GGUFWriter(destination, alignment=file.alignment, version=file.version)
        writer.add_metadata(file.metadata, leave_out=SPLIT_KEYS)
        done = []
        for name, info, added in planned(file, changes):
            if not added:
                writer.add_tensor(name, info)
                continue
            format = checked_format(name, info, wanted)
            writer.add_tensor(name, merged(name, info, added, format, threads), info.shape, format)
            done.append((name, info.type, format))
        writer.write()
    return MergeSummary(tuple(done))


def read_adapters(adapter: Any, scale: float) -> list[tuple[Lora, float]]:
    """Raises ConfigError for what is no adapter, and what `Lora.load` raises."""
    given = [adapter] if isinstance(adapter, str | os.PathLike | Lora) else adapter
    if not isinstance(given, SequenceOf) or not given:
        raise ConfigError(f"adapter must be a path, a Lora, or a list of at least one of these, not {adapter!r}")
    found = []
    for i, entry in enumerate(given):
        one, factor = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, scale)
        factor = check_scale(f"adapter[{i}]: scale", factor)
        found.append((as_lora(one), factor))
    return found


def places(lora: Lora) -> tuple[Path, ...]:
    """The files that an adapter may have been read from."""
    return lora.path, lora.path / WEIGHTS, lora.path / CONFIG


def changes_by_tensor(file: GGUFFile, loras: list[tuple[Lora, float]]) -> dict[str, list[Change]]:
    """Changes by the tensor that is written: its own name, or `OUTPUT` for the second use of an embedding.

    The list of a use is empty if it is written only because the other use is changed.
    """
    model = load_model(file, repack=False)
    found: dict[str, list[Change]] = {}
    for lora, scale in loras:
        seen: set[Any] = set()
        for name, change, parts, target in changed_tensors(lora, model.spec, model.adaptable):
            if not seen.isdisjoint(part.whole for part in parts):
                raise LoraError(f"{name}: the adapter changes the same weights under another name")
            seen.update(part.whole for part in parts)
            both = len(parts) == len(model.adaptable[target].parts)
            place = target if both or change.lookups else OUTPUT
            found.setdefault(place, []).append(replace(change, scale=change.scale * scale, lookups=not both))
    return untied(file, found)


def untied(file: GGUFFile, changes: dict[str, list[Change]]) -> dict[str, list[Change]]:
    """Changes with those of the output separate, if the embedding is the output and their changes differ."""
    if OUTPUT in file.tensors:
        return changes
    of_table = changes.get(EMBEDDING, [])
    if OUTPUT in changes or any(change.lookups for change in of_table):
        shared = [change for change in of_table if not change.lookups]
        return changes | {OUTPUT: shared + changes.get(OUTPUT, [])}
    return changes


def planned(file: GGUFFile, changes: dict[str, list[Change]]) -> Iterator[tuple[str, TensorInfo, list[Change]]]:
    """Every tensor of the result, in the file's order: its name, its source, and its changes."""
    for name, info in file.tensors.items():
        yield name, info, changes.get(name, [])
    if OUTPUT in changes and OUTPUT not in file.tensors:
        yield OUTPUT, file.tensors[EMBEDDING], changes[OUTPUT]


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
    name: str, info: TensorInfo, changes: list[Change], format: str, num_threads: int
) -> Callable[[], Iterator[NDArray[np.uint8]]]:
    """A function that yields the changed tensor's blocks in parts of whole rows."""

    def parts() -> Iterator[NDArray[np.uint8]]:
        from oxillama.kernels.matmul import dequantize, quantize

        n_in, row_bytes = info.shape[-1], format_by_name(info.type).nbytes(info.shape[-1])
        n_rows = math.prod(info.shape[:-1])
        step = max(1, PIECE_VALUES // n_in)
        for start in range(0, n_rows, step):
            end = min(start + step, n_rows)
            part = info.data[start * row_bytes : end * row_bytes]
            values = dequantize(part, info.type, (end - start) * n_in).reshape(-1, n_in).astype(np.float64)
            for change in changes:
                values += product_rows(change, start, end)
            info.check()
            yield quantize(values.astype(np.float32), format, name=name, num_threads=num_threads)

    return parts


def product_rows(change: Change, start: int, end: int) -> NDArray[np.float64]:
    """Rows ``start`` to ``end`` of ``scale * b @ a``, counted through a stack; computed in double."""
    if change.a.ndim == 2:
        return product(change.b[start:end], change.a) * change.scale
    n_out, rows = change.b.shape[-2], []
    while start < end:
        e, first = divmod(start, n_out)
        last = min(n_out, first + end - start)
        a, b = (x[e if len(x) > 1 else 0] for x in (change.a, change.b))
        rows.append(product(b[first:last], a) * change.scale)
        start += last - first
    return np.concatenate(rows)


def product(b: NDArray[np.float32], a: NDArray[np.float32]) -> NDArray[np.float64]:
    """``b @ a``, ranks added in ascending order: numpy's product of matrices has another order on another CPU."""
    found = np.zeros((len(b), a.shape[1]))
    for column, row in zip(b.T.astype(np.float64), a.astype(np.float64), strict=True):
        found += column[:, None] * row
    return found
