"""Bundles: snapshots of several requests in one file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from oxillama._util.checks import check_bool
from oxillama._util.json_fields import Fields
from oxillama.errors import ConfigError, SnapshotDamagedError
from oxillama.kernels._table import tier
from oxillama.snapshot.capture import NOTHING, WRITER, Known, path_of
from oxillama.snapshot.format.layout import MAGIC
from oxillama.snapshot.format.reader import Reader, Rows, Saved, check_part
from oxillama.snapshot.format.source import MemorySource, Source
from oxillama.snapshot.format.writer import packed, write_file

if TYPE_CHECKING:
    from oxillama.core.generation_request import GenerationRequest
    from oxillama.core.request import ResultQueue
    from oxillama.core.results import Chunk
    from oxillama.snapshot.capture import SnapshotWriter

__all__ = [
    "KIND",
    "PARTS",
    "Parts",
    "in_order",
    "parts_of",
    "save_several",
    "save_together",
]

KIND = "texts"
PARTS = {KIND: "text", "beams": "beam"}  # kinds, and those of what is in them
MAX_PARTS = 1 << 14


# ---- out


def save_several(
    maker: SnapshotWriter, requests: list[GenerationRequest], outbox: ResultQueue, path: Any, *, base: Any, compress:
    bool,
    shared: bool,
) -> bytes | None:  # fmt: skip
    """All requests as they are between the same two steps: to a file, or as bytes if there is no path."""
    if base is not None or shared:
        raise ConfigError("base and shared are for one completion: give index, or leave them out")

    def take() -> tuple[dict[str, Any], Iterator[Saved]]:
        unread = [index for index, _ in outbox.items]
        return {"kind": KIND, "unread": unread}, (maker.text(request, outbox, NOTHING) for request in requests)

    return save_together(maker, take, path, compress=compress)


def save_together(
    maker: SnapshotWriter, take: Callable[[], tuple[dict[str, Any], Iterator[Saved]]], path: Any, *, compress: bool
) -> bytes | None:
    """What `take` gives between two steps: what is to be said of all, and each."""
    saved = _saved(maker, take, check_bool("compress", compress))
    if path is None:
        return packed(saved)
    write_file(saved, path_of("path", path))
    return None


def _saved(maker: SnapshotWriter, take: Callable[[], tuple[dict[str, Any], Iterator[Saved]]], compress: bool) -> Saved:
    parts: list[Saved] = []

    def let_go() -> None:
        for part in parts:
            part.let_go()

    def taken(known: Known) -> Saved:
        state, found = take()
        try:
            parts.extend(found)
        except BaseException:
            let_go()
            raise
        return Saved(state | {"written_by": WRITER, "tier": tier()}, let_go=let_go)

    with maker.taken(taken) as whole:
        data = [packed(part, squeeze=compress) for part in parts]
    name = PARTS[whole.state["kind"]]
    return Saved(whole.state, {f"{name}.{i}": Rows.whole(np.frombuffer(d, np.uint8)) for i, d in enumerate(data)})


# ---- in


class Parts(NamedTuple):
    """Snapshots in one. kind: theirs. state: what is said of all; None of a snapshot that is one itself."""

    sources: list[Source]
    kind: str = ""
    state: Fields | None = None


def parts_of(source: Source) -> Parts:
    """The snapshots in one; of any other, itself alone. Raises SnapshotDamagedError."""
    if bytes(source.read(0, min(9, source.n_bytes))) != MAGIC + b"\2":
        return Parts([source])
    reader = Reader(source)
    kind = reader.state.get("kind")
    if not isinstance(kind, str) or kind not in PARTS:
        return Parts([source])
    n, label, name = len(reader.ranges), source.label, PARTS[kind]
    if set(reader.ranges) != {f"{name}.{i}" for i in range(n)} or not 0 < n <= MAX_PARTS:
        raise SnapshotDamagedError(f"{label}: it has the sections {sorted(reader.ranges)[:9]}, not {name}.0 and so on")
    arrays = reader.saved(lambda section: check_part(section, label)).tensors
    views = {part: memoryview(cast(Any, arrays[part].array)) for part in (f"{name}.{i}" for i in range(n))}
    return Parts([MemorySource(view, f"{label}: {part}") for part, view in views.items()], name, reader.state)


def in_order(items: deque[tuple[int, Chunk]], state: Fields | None, label: str) -> deque[tuple[int, Chunk]]:
    """Unread chunks, which are of one request after another, as they came. Raises SnapshotDamagedError."""
    if state is None:
        return items
    order = state.integers("unread", len(state.items_of("unread")))
    if sorted(order) != [index for index, _ in items]:
        raise SnapshotDamagedError(f"{label}: unread must say whose chunks are there, not {order!r:.60}")
    of: dict[int, deque[Chunk]] = {}
    for index, chunk in items:
        of.setdefault(index, deque()).append(chunk)
    return deque((index, of[index].popleft()) for index in order)
