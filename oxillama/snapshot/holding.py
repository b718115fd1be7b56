"""Blocks of an engine's cache that nobody may write to, because they are being saved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from oxillama.snapshot.saved import Saved

if TYPE_CHECKING:
    from oxillama.engine.core import EngineCore

__all__ = ["Holding"]


class Holding:
    """What is held for one save: until its end, or until nobody has this any more, wherever an exception came from.

    A forked child lets go of what another thread was saving, which it doesn't have.
    """

    def __init__(self, core: EngineCore) -> None:
        self._thread = threading.get_ident()
        self._held: list[Callable[[], None]] = []
        core.sessions.add(self)
        self._loop = core.loop
        self._dropped = self._loop.finalizer(partial(_let_go, self._held))

    def keep(self, saved: Saved) -> Saved:
        """In the turn of the loop in which it was made."""
        self._held.append(saved.let_go)
        return saved

    def end(self) -> None:
        self._loop.post(partial(_let_go, self._held))

    def after_fork(self) -> None:
        """In a forked child, in a turn of the loop."""
        if self._thread != threading.get_ident():
            _let_go(self._held)


def _let_go(held: list[Callable[[], None]]) -> None:
    while held:
        held.pop()()
