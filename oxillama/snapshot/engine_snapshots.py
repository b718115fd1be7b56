"""Engine snapshots: the writer of all that one engine and its handles save."""

from __future__ import annotations

import os
from typing import Any

from oxillama._util.checks import check_bool
from oxillama._util.deprecation import warn_deprecated
from oxillama.core.beam_search import BeamSearch
from oxillama.core.context import EngineContext
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.request import ResultQueue
from oxillama.errors import ConfigError
from oxillama.snapshot.beam_state import save_search
from oxillama.snapshot.bundle import save_several
from oxillama.snapshot.capture import EMPTY_BASE, Capture, SnapshotWriter, check_format, path_of
from oxillama.snapshot.format.writer import packed, write_file, write_version

__all__ = ["EngineSnapshots", "writer_of"]

DEPRECATED = "base= of snapshots is deprecated: shared=True keeps what any number of them have in common, once"


class EngineSnapshots(SnapshotWriter):
    """Writes what `SnapshotWriter` captures of an engine, to files or as bytes (`SnapshotProtocol`)."""

    def write(
        self, take: Capture, path: str | os.PathLike[str], *, base: Any = None, compress: bool = False,
        shared: bool = False, format: int = 2,
    ) -> None:  # fmt: skip
        """Writes what `take` gives to a file; options are those of `Engine.snapshot`."""
        target = path_of("path", path)
        if check_format(format) == 1:
            for name, given in (("base", base is not None), ("compress", compress), ("shared", shared)):
                if given:
                    raise ConfigError(f"{name} is not for format=1: leave it out")
            write_version(self.version1(take), target)
            return
        if shared and (compress or base is not None):
            other = "compress" if compress else "base"
            raise ConfigError(f"shared and {other} are both given: blocks that are shared are whole, and as they are")
        known = EMPTY_BASE if base is None else self.known(target, path_of("base", base))
        check_bool("shared", shared)
        if base is not None:
            warn_deprecated(DEPRECATED)
        with self.hold(take, known) as saved:
            if shared:
                from oxillama.snapshot.format.block_garbage import write_shared

                write_shared(saved, target)
                return
            if any(rows.first > rows.start for rows in saved.tensors.values()):
                saved.base = known.base
            write_file(saved, target, squeeze=check_bool("compress", compress))

    def pack(self, take: Capture, *, compress: bool = False, format: int = 2) -> bytes:
        """`write` without a file: the snapshot as bytes."""
        if check_format(format) == 1:
            if compress:
                raise ConfigError("compress is not for format=1: leave it out")
            return self.version1(take)
        with self.hold(take) as saved:
            return packed(saved, squeeze=check_bool("compress", compress))

    def version1(self, take: Capture) -> bytes:
        """A snapshot in the original's format. Raises SnapshotError for state that the format has no place for."""
        from oxillama.snapshot.v1_convert import from_saved

        with self.hold(take) as saved:
            return from_saved(self, saved).encode()

    def save_texts(
        self, requests: list[GenerationRequest], outbox: ResultQueue, path: Any, **options: Any
    ) -> bytes | None:
        """All completions of one call in one file, or as bytes without a path."""
        return save_several(self, requests, outbox, path, **options)

    def save_search(self, search: BeamSearch, path: Any, *, compress: bool) -> bytes | None:
        """A beam search, with all of its beams."""
        return save_search(self, search, path, compress=compress)


def writer_of(context: EngineContext) -> EngineSnapshots:
    """The writer that the engine was made with, which also reads what it has written."""
    found = context.snapshots
    assert isinstance(found, EngineSnapshots)
    return found
