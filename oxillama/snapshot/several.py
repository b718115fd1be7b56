"""Snapshots of the completions of one prompt together: whole ones of each, the sections ``text.0``, ``text.1``, … of
one more."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from oxillama.checks import check_bool
from oxillama.errors import ConfigError, SnapshotDamagedError
from oxillama.kernels._table import tier
from oxillama.snapshot.layout import MAGIC, Section
from oxillama.snapshot.maker import WRITER, Known, path_of
from oxillama.snapshot.saved import Reader, Rows, Saved
from oxillama.snapshot.sources import MemorySource, Source
from oxillama.snapshot.writing import packed, write_file

if TYPE_CHECKING:
    from oxillama.engine.request import Outbox
    from oxillama.engine.results import Chunk
    from oxillama.engine.stream import TextRequest
    from oxillama.snapshot.maker import SnapshotMaker

__all__ = ["KIND", "in_order", "parts_of", "save_several"]

KIND = "texts"
MAX_TEXTS = 1 << 14


# ---- out


def save_several(
    maker: SnapshotMaker, requests: list[TextRequest], outbox: Outbox, path: Any, *, base: Any, compress: bool,
    shared: bool,
) -> bytes | None:  # fmt: skip
    """All requests as they are between the same two steps: to a file, or as bytes if there is no path."""
    if base is not None or shared:
        raise ConfigError("base and shared are for one completion: give index, or leave them out")
    saved = _saved(maker, requests, outbox, check_bool("compress", compress))
    if path is None:
        return packed(saved)
    write_file(saved, path_of("path", path))
    return None


def _saved(maker: SnapshotMaker, requests: list[TextRequest], outbox: Outbox, compress: bool) -> Saved:
    texts: list[Saved] = []

    def let_go() -> None:
        for text in texts:
            text.let_go()

    def take(known: Known) -> Saved:
        try:
            texts.extend(maker.text(request, outbox, known) for request in requests)
        except BaseException:
            let_go()
            raise
        unread = [index for index, _ in outbox.items]
        return Saved({"kind": KIND, "written_by": WRITER, "tier": tier(), "unread": unread}, let_go=let_go)

    with maker.taken(take) as whole:
        data = [packed(text, squeeze=compress) for text in texts]
    return Saved(whole.state, {f"text.{i}": Rows.whole(np.frombuffer(d, np.uint8)) for i, d in enumerate(data)})


# ---- in


def parts_of(source: Source) -> tuple[list[Source], list[int] | None]:
    """The snapshots in one, and whose unread chunks came in which order; of any other, itself alone.

    Raises SnapshotDamagedError.
    """
    if bytes(source.read(0, min(9, source.n_bytes))) != MAGIC + b"\2":
        return [source], None
    reader = Reader(source)
    if reader.state.get("kind") != KIND:
        return [source], None
    n, label = len(reader.ranges), source.label
    if set(reader.ranges) != {f"text.{i}" for i in range(n)} or not 0 < n <= MAX_TEXTS:
        raise SnapshotDamagedError(f"{label}: it has the sections {sorted(reader.ranges)[:9]}, not text.0 and so on")
    arrays = reader.saved(lambda section: _check_part(section, label)).tensors
    given = reader.state.integers("unread", len(reader.state.items_of("unread")))
    parts = [MemorySource(memoryview(cast(Any, arrays[f"text.{i}"].array)), f"{label}: text.{i}") for i in range(n)]
    return cast(list[Source], parts), given


def _check_part(section: Section, label: str) -> None:
    if section.dtype != np.uint8 or len(section.shape) != 1 or section.first:
        raise SnapshotDamagedError(f"{label}: section {section.name} is no snapshot")


def in_order(items: deque[tuple[int, Chunk]], order: list[int] | None, label: str) -> deque[tuple[int, Chunk]]:
    """Unread chunks, which are of one request after another, as they came. Raises SnapshotDamagedError."""
    if order is None:
        return items
    if sorted(order) != [index for index, _ in items]:
        raise SnapshotDamagedError(f"{label}: unread must say whose chunks are there, not {order!r:.60}")
    of: dict[int, deque[Chunk]] = {}
    for index, chunk in items:
        of.setdefault(index, deque()).append(chunk)
    return deque((index, of[index].popleft()) for index in order)
