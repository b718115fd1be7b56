"""Beam search round by round."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from oxillama._util.pickling import stays_here
from oxillama.core.beam_search import BeamSearch
from oxillama.core.engine_core import EngineCore
from oxillama.core.results import BeamHypothesis, CancelToken

if TYPE_CHECKING:
    from oxillama.snapshot.capture import SnapshotWriter

__all__ = [
    "BeamRounds",
]


class BeamRounds(Iterator[list[BeamHypothesis]]):
    """The beams that are followed after each round, the best first; the last round has none, and `results` tells.

    Their `finish_reason` is None, and their score what they would have if they ended here. It begins with the first
    round that is asked for. Leaving early (`close`, the end of a `with` block, or dropping it) ends the search.
    """

    __reduce_ex__ = stays_here("send snapshot_bytes() instead, with which engine.resume() goes on")

    def __init__(
        self, core: EngineCore, search: BeamSearch, cancel_token: CancelToken | None, snapshots: SnapshotWriter
    ) -> None:
        self._core = core
        self._search = search
        self._cancel_token = cancel_token
        self._snapshots = snapshots
        self._begun = not search.outbox.n_open  # one that was saved after its end has nothing to begin
        self._left = False
        self._n_seen = search.n_rounds

    def __next__(self) -> list[BeamHypothesis]:
        search = self._search
        self._drive(lambda: search.n_rounds > self._n_seen)
        if search.outbox.error is not None:
            raise search.outbox.error
        if self._left or not search.outbox.n_open:
            raise StopIteration
        self._n_seen = search.n_rounds
        return self._core.change(search.followed)

    def results(self) -> list[BeamHypothesis]:
        """What is found, when no more is to be done: `Engine.beam_search` returns it, and raises its errors."""
        self._drive(lambda: False)
        return self._search.results()

    def _drive(self, enough: Callable[[], bool]) -> None:
        """Computes until `enough()` or the end; ended by its cancel token, or by an exception, it is cancelled."""
        core, search, outbox = self._core, self._search, self._search.outbox
        token = self._cancel_token

        def cancelled() -> bool:
            return token is not None and token.cancelled

        try:
            if not self._begun:
                self._begun = True
                self._ticket = core.submit(search.beams)
            core.drive(lambda: enough() or not outbox.n_open or cancelled())
            if cancelled():
                core.cancel(search.beams)
                core.drive(lambda: not outbox.n_open)
        except BaseException:
            self.close()
            raise

    def snapshot(self, path: str | os.PathLike[str] | None = None, *, compress: bool = False) -> bytes | None:
        """Saves the search as it is now, in the middle of a round too: to a file, or as bytes if there is no path.

        `Engine.resume` gives another one that goes on from there, to the same results. compress: with zstd.
        Raises SnapshotError and its children, ConfigError, EngineClosedError, and the error of a search that failed.
        """
        from oxillama.snapshot.beam_state import save_search

        return save_search(self._snapshots, self._search, path, compress=compress)

    def snapshot_bytes(self, *, compress: bool = False) -> bytes:
        """`snapshot` without a path."""
        return cast(bytes, self.snapshot(compress=compress))

    def close(self) -> None:
        """Ends the search: unfinished beams are results too, with the reason "cancelled"."""
        self._begun = self._left = True
        self._core.cancel(self._search.beams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
