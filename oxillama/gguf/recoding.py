"""Quantisation of a model's file: its matrices in other formats."""

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int
from oxillama.errors import ConfigError, QuantError
from oxillama.gguf.formats import format_by_name
from oxillama.gguf.metadata import Metadata
from oxillama.gguf.mixes import FileType, file_type
from oxillama.gguf.output import check_not_source
from oxillama.gguf.pages import release_pages
from oxillama.gguf.plans import TensorPlan, plan_tensors
from oxillama.gguf.reader import GGUFFile, open_gguf
from oxillama.gguf.shards import SPLIT_KEYS
from oxillama.gguf.tensors import TensorInfo
from oxillama.gguf.writer import GGUFWriter

__all__ = ["QuantizeSummary", "add_recoded", "check_destination", "check_threads", "quantize_file", "report_fallbacks"]

PIECE_BYTES = 16 << 20  # bytes of a source tensor that are converted at a time
QUANTIZATION_VERSION = 2  # of the block layouts; no program can read files of version 1 any more

_log = logging.getLogger("oxillama")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class QuantizeSummary:
    """Summary of `quantize_file`: the changes made, or with ``dry_run`` those it would make."""

    file_type: str
    tensors: tuple[TensorPlan, ...]

    @property
    def fallbacks(self) -> tuple[TensorPlan, ...]:
        """The tensors that could not have the format of the file type."""
        return tuple(t for t in self.tensors if t.fallback)

    @property
    def bytes_before(self) -> int:
        """Size of all tensors in the source."""
        return sum(t.nbytes(t.before) for t in self.tensors)

    @property
    def bytes_after(self) -> int:
        """Size of all tensors in the result."""
        return sum(t.nbytes(t.after) for t in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight of the result, over all tensors."""
        return 8 * self.bytes_after / max(1, sum(math.prod(t.shape) for t in self.tensors))


def quantize_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    type: str,
    *,
    num_threads: int | None = None,
    tensor_types: Mapping[str, str] | None = None,
    pure: bool = False,
    keep_output: bool = False,
    allow_requantize: bool = False,
    dry_run: bool = False,
    progress: bool | Progress = False,
) -> QuantizeSummary:
    """Write a model's file again with its matrices in other formats. Any number of threads gives the same bytes.

    The file is written tensor by tensor, large ones in parts, beside ``destination``, and takes its name when it is
    complete. A split model becomes one file.

    Args:
        source: a GGUF file; of a split model, the first.
        destination: the file to write. An existing file is replaced at the end, atomically.
        type: a format (``"Q8_0"``) or a mix (``"Q4_K_M"``): `mixes.FILE_TYPES`.
        num_threads: by default as for an engine; see `EngineConfig`.
        tensor_types: formats by regular expressions, searched in tensor names; the first match counts.
        pure: the same format for all matrices, instead of more bits for those that need them.
        keep_output: leave the output matrix (of a model without one of its own: the embedding) as it is.
        allow_requantize: also convert tensors that are quantised already, which adds their error to the new one. Not
            needed for ``"F32"``, which holds the values of every format as they are.
        dry_run: only return the summary.
        progress: True shows a bar on stderr; a function is called with (converted bytes of the source, all bytes).

    Raises:
        ConfigError: ``destination`` is the source or can't be written, or an argument has no meaning for this model.
        QuantError: unknown type, quantised source without ``allow_requantize``, values that don't fit the format.
        LoadError: what `open` raises.
        OSError: the system refuses to write.
    """
    wanted, threads = file_type(type), check_threads(num_threads)
    with open_gguf(source) as file:
        plans = plan_tensors(
            file.tensors, file.metadata, wanted, tensor_types=tensor_types or {}, pure=pure, keep_output=keep_output
        )
        _check_sources(plans, allow_requantize)
        report_fallbacks(plans)
        if not dry_run:
            check_destination(file, destination)
            _write(file, destination, wanted, plans, threads, progress)
    return QuantizeSummary(wanted.name, tuple(plans))


def _check_sources(plans: list[TensorPlan], allow_requantize: bool) -> None:
    """Raises QuantError for tensors that would lose more than they have lost already, if that isn't allowed."""
    again = [p for p in plans if p.after not in (p.before, "F32") and format_by_name(p.before).block_values > 1]
    if again and not allow_requantize:
        others = {0: "", 1: ", as is another that would change"}
        raise QuantError(
            f"{again[0].name} is quantised already ({again[0].before})"
            + others.get(len(again) - 1, f", as are {len(again) - 1} others that would change")
            + ": start from a file in F32, F16 or BF16, or accept the loss with allow_requantize"
        )


def report_fallbacks(plans: list[TensorPlan]) -> None:
    for p in plans:
        if p.fallback:
            _log.warning("%s becomes %s: %s", p.name, p.after, p.fallback)


def check_destination(file: GGUFFile, destination: str | os.PathLike[str], *others: Path) -> None:
    """Raises ConfigError unless destination names a file that is neither the model nor one of the others."""
    place = os.fspath(destination) if isinstance(destination, os.PathLike) else destination
    if not isinstance(place, str) or "\0" in place:
        raise ConfigError(f"destination must be the path of a file, not {place!r}")
    check_not_source(place, *(shard.path for shard in file.shards), *others)


def check_threads(num_threads: int | None) -> int:
    from oxillama.kernels._cores import default_num_threads

    if num_threads is None:
        return default_num_threads()
    return check_int("num_threads", num_threads, 1, 1024)


def _write(
    file: GGUFFile,
    destination: str | os.PathLike[str],
    type: FileType,
    plans: list[TensorPlan],
    num_threads: int,
    progress: bool | Progress,
) -> None:
    writer = GGUFWriter(destination, alignment=file.alignment, version=file.version)
    with _counter(progress, sum(t.nbytes for t in file.tensors.values())) as count:
        add_recoded(writer, file.metadata, file.tensors, type, plans, num_threads, count)
        writer.write()


def add_recoded(
    writer: GGUFWriter,
    metadata: Metadata,
    tensors: Mapping[str, TensorInfo],
    type: FileType | None,
    plans: list[TensorPlan],
    num_threads: int,
    count: Callable[[int], None] = lambda n: None,
) -> None:
    """Adds metadata, with the file type in them, and tensors to a writer, which converts them when it writes them.

    ``type``: None keeps the file's. ``count`` is called with the number of converted bytes of ``tensors``.
    """
    described = {"general.quantization_version": QUANTIZATION_VERSION, "general.file_type": type.id} if type else {}
    writer.add_metadata(metadata.replaced(described), leave_out=SPLIT_KEYS)
    for plan in plans:
        source = _source(tensors[plan.name], plan.after, num_threads, count)
        writer.add_tensor(plan.name, source, plan.shape, plan.after)


def _source(
    info: TensorInfo, format: str, num_threads: int, count: Callable[[int], None]
) -> Callable[[], Iterator[NDArray[np.uint8]]]:
    """A function that yields the tensor's blocks in parts."""

    def parts() -> Iterator[NDArray[np.uint8]]:
        from oxillama.kernels.convert import convert

        row = format_by_name(info.type).nbytes(info.shape[-1])
        step = max(1, PIECE_BYTES // row) * row
        for start in range(0, info.nbytes, step):
            part = info.data[start : start + step]
            if format == info.type:
                yield part
            else:
                yield convert(part, info.type, format, name=info.name, num_threads=num_threads)
            info.check()
            release_pages(part)
            count(part.nbytes)

    return parts


class _counter:
    """Reports converted bytes to ``progress``; a context manager, since a bar must be closed."""

    def __init__(self, progress: bool | Progress, total: int) -> None:
        self.done, self.total, self.bar = 0, total, None
        self.tell = progress if callable(progress) else None
        if progress is True:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]  # a widget in notebooks

            self.bar = tqdm(total=total, unit="B", unit_scale=True, desc="quantising", leave=False)

    def __enter__(self) -> Callable[[int], None]:
        return self.count

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def count(self, n_bytes: int) -> None:
        self.done += n_bytes
        if self.bar is not None:
            self.bar.update(n_bytes)
        if self.tell is not None:
            self.tell(self.done, self.total)
