"""Bundles: snapshots of several requests in one file.

Those of the completions of one prompt are ``text.0``, ``text.1``, …, those of a search's beams ``beam.0`` and so on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from oxillama._util.checks import check_bool
from oxillama._util.json_fields import Fields
from oxillama.errors import ConfigError, SnapshotDamagedError
from oxillama.kernels._table import tier
from oxillama.snapshot.capture import EMPTY_BASE, WRITER, BaseContents, path_of
from oxillama.snapshot.format.reader import ArrayRows, Contents, OpenSnapshot, SnapshotReader, check_part
from oxillama.snapshot.format.source import MemorySource
from oxillama.snapshot.format.writer import packed, write_file

if TYPE_CHECKING:
    from oxillama.core.generation_request import GenerationRequest
    from oxillama.core.request import ResultQueue
    from oxillama.core.results import Chunk
    from oxillama.snapshot.capture import SnapshotWriter

__all__ = [
    "KIND",
    "PARTS",
    "Bundle",
    "interleave",
    "open_bundle",
    "parts_of",
    "save_bundle",
    "save_several",
]

KIND = "texts"
PARTS = {KIND: "text", "beams": "beam"}  # kinds of bundles, and of the snapshots in them
MAX_PARTS = 1 << 14


# ---- out


def save_several(
    writer: SnapshotWriter, requests: list[GenerationRequest], outbox: ResultQueue, path: Any, *, base: Any,
    compress: bool, shared: bool,
) -> bytes | None:  # fmt: skip
    """Saves all requests as they are between the same two steps: to a file, or as bytes if path is None."""
    if base is not None or shared:
        raise ConfigError("base and shared are for one completion: give index, or leave them out")

    def take() -> tuple[dict[str, Any], Iterator[Contents]]:
        unread = [index for index, _ in outbox.items]
        return {"kind": KIND, "unread": unread}, (writer.text(request, outbox, EMPTY_BASE) for request in requests)

    return save_bundle(writer, take, path, compress=compress)


def save_bundle(
    writer: SnapshotWriter, take: Callable[[], tuple[dict[str, Any], Iterator[Contents]]], path: Any, *, compress: bool
) -> bytes | None:
    """Saves what `take` returns between two steps: the common state, and the contents of each snapshot."""
    saved = _saved(writer, take, check_bool("compress", compress))
    if path is None:
        return packed(saved)
    write_file(saved, path_of("path", path))
    return None


def _saved(
    writer: SnapshotWriter, take: Callable[[], tuple[dict[str, Any], Iterator[Contents]]], compress: bool
) -> Contents:
    parts: list[Contents] = []

    def let_go() -> None:
        for part in parts:
            part.let_go()

    def capture(known: BaseContents) -> Contents:
        state, found = take()
        try:
            parts.extend(found)
        except BaseException:
            let_go()
            raise
        return Contents(state | {"written_by": WRITER, "tier": tier()}, let_go=let_go)

    with writer.hold(capture) as whole:
        data = [packed(part, squeeze=compress) for part in parts]
    name = PARTS[whole.state["kind"]]
    return Contents(
        whole.state, {f"{name}.{i}": ArrayRows.whole(np.frombuffer(d, np.uint8)) for i, d in enumerate(data)}
    )


# ---- in


class Bundle(NamedTuple):
    """Snapshots of one file. kind: theirs. state: the common state; None if the file is a single snapshot."""

    parts: list[OpenSnapshot]
    kind: str = ""
    state: Fields | None = None


def open_bundle(snapshot: OpenSnapshot) -> Bundle:
    """The snapshots of a bundle; of any other snapshot, itself alone. Raises SnapshotDamagedError."""
    if not snapshot.is_version2:
        return Bundle([snapshot])
    reader = snapshot.reader
    kind = reader.state.get("kind")
    if not isinstance(kind, str) or kind not in PARTS:
        return Bundle([snapshot])
    n, label, name = len(reader.ranges), snapshot.label, PARTS[kind]
    if set(reader.ranges) != {f"{name}.{i}" for i in range(n)} or not 0 < n <= MAX_PARTS:
        raise SnapshotDamagedError(f"{label}: it has the sections {sorted(reader.ranges)[:9]}, not {name}.0 and so on")
    found = parts_of(reader)
    return Bundle([found[f"{name}.{i}"] for i in range(n)], name, reader.state)


def parts_of(reader: SnapshotReader) -> dict[str, OpenSnapshot]:
    """The snapshots that are sections of another one, by name. Raises SnapshotDamagedError."""
    label = reader.label
    arrays = reader.saved(lambda section: check_part(section, label)).tensors
    views = {name: memoryview(cast(Any, rows.array)) for name, rows in arrays.items()}
    return {name: OpenSnapshot(MemorySource(view, f"{label}: {name}")) for name, view in views.items()}


def interleave(items: deque[tuple[int, Chunk]], state: Fields | None, label: str) -> deque[tuple[int, Chunk]]:
    """Unread chunks, given request after request, in the order in which they were made. Raises SnapshotDamagedError."""
    if state is None:
        return items
    order = state.integers("unread", len(state.items_of("unread")))
    if sorted(order) != [index for index, _ in items]:
        raise SnapshotDamagedError(f"{label}: unread must say whose chunks are there, not {order!r:.60}")
    of: dict[int, deque[Chunk]] = {}
    for index, chunk in items:
        of.setdefault(index, deque()).append(chunk)
    return deque((index, of[index].popleft()) for index in order)
