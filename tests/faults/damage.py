"""Snapshots cut off at every boundary, and with each bit of their headers and descriptions flipped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import oxillama as ox
from oxillama.errors import SnapshotError
from oxillama.snapshot import snapshot_info
from oxillama.snapshot.format.layout import HEADER_BYTES, read_head, read_size
from tests.faults.scenes import NAME, SCENES
from tests.snapshot.models import load, path_of


@dataclass
class File:
    """A snapshot in a folder. use: loads it. boundaries: of its sections. described: bytes that are no data of arrays;
    hashed: whether it has hashes of them, which version 1 has not."""

    path: Path
    data: bytes
    use: Callable[[Path], object]
    boundaries: list[int]
    described: list[int]
    hashed: bool


def file_of(name: str, folder: Path) -> File:
    """What a scene of `scenes.SAVES` leaves."""
    scene = SCENES[name](folder)
    scene.act(folder)
    data = (folder / NAME).read_bytes()
    engine = load("jamba", context_size=256) if name.startswith("request") else load("llama")
    draft = ox.DraftModel(path_of("llama"), num_threads=1) if name.startswith("speculative") else None

    def use(path: Path) -> None:
        if draft is not None:
            ox.SpeculativeEngine.restore(path, draft=draft, num_threads=1).close()
        else:
            with contextlib.closing(engine.resume(path)):
                pass

    if "version 1" in name:
        places = sorted({*range(0, len(data), max(1, len(data) // 97)), *range(min(256, len(data)))})
        return File(folder / NAME, data, use, places, list(range(min(256, len(data)))), False)
    size = read_size(data[:HEADER_BYTES], NAME)
    sections = read_head(data[:size], len(data), NAME)
    ends = [place for s in sections for place in (s.offset, s.offset + s.n_stored)]
    state = range(sections[0].offset, sections[0].offset + sections[0].n_stored)
    return File(folder / NAME, data, use, sorted({HEADER_BYTES, size, *ends}), [*range(size), *state], True)


def cut(file: File) -> Iterator[list[str]]:
    """Ends at, before and after each boundary: whether each is noticed."""
    places = {place + by for place in file.boundaries for by in (-1, 0, 1)}
    for n in sorted(n for n in places if 0 <= n < len(file.data)):
        yield _refused(file, file.data[:n], f"cut off after {n} bytes")


def flipped(file: File, step: int = 1) -> Iterator[list[str]]:
    """Each `step`-th bit of header, table and description: whether each is noticed."""
    for number in range(0, 8 * len(file.described), step):
        at, bit = file.described[number // 8], number % 8
        bad = bytearray(file.data)
        bad[at] ^= 1 << bit
        yield _refused(file, bytes(bad), f"bit {bit} of byte {at}", must=file.hashed)


def _refused(file: File, data: bytes, what: str, *, must: bool = True) -> list[str]:
    """Nothing, if loading ends in one of our errors; without hashes it may be another snapshot that is in order."""
    file.path.write_bytes(data)
    missed = []
    for use in (file.use, snapshot_info):
        try:
            use(file.path)
        except SnapshotError:
            continue
        except Exception as error:
            if must or not isinstance(error, ox.OxiLlamaError):
                missed.append(f"{what}: {error!r}")
            continue
        if must and not (use is snapshot_info and file.hashed is False):
            missed.append(f"{what}: it is loaded")
    return missed
