"""Watches over a connection: whether its client is still there, and whether it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oxillama.server.wire import Wire

__all__ = ["EndWatch", "StallWatch"]

FIRST_LOOK, LOOK = 0.005, 0.25  # seconds between looks at a client that has shut its side down


class EndWatch:
    """Finds out whether a client that has shut its side down has ended altogether, and closes its connection then.

    waits: whether it waits for an answer. is_silent: whether nothing of this answer has been sent; then the first byte
    is, and another one each time that the silence has lasted twice as long.
    """

    def __init__(
        self, wire: Wire, loop: asyncio.AbstractEventLoop, waits: Callable[[], bool], is_silent: Callable[[], bool]
    ) -> None:
        self._wire, self._loop, self._waits, self._is_silent = wire, loop, waits, is_silent
        self._since = loop.time()
        self._wait, self._next_probe = 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def _look(self) -> None:
        self._timer = None
        if self._wire.is_closing() or not self._waits():
            return
        elapsed = self._loop.time() - self._since
        if elapsed >= self._next_probe and self._is_silent():
            self._wire.probe()
            self._next_probe = max(LOOK, 2 * elapsed)
        if self._wire.hung_up:
            self._wire.abort()
            return
        self._wait = min(max(FIRST_LOOK, 2 * self._wait), LOOK)
        self._timer = self._loop.call_later(self._wait, self._look)

    def end(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()


class StallWatch:
    """Cuts a client off that reads nothing of an answer for `timeout` seconds, be it a stream, whole, or the last one.

    is_paused: whether nothing more is written until some of it is read.
    """

    def __init__(
        self, wire: Wire, loop: asyncio.AbstractEventLoop, timeout: float, is_paused: Callable[[], bool]
    ) -> None:
        self._wire, self._loop, self._timeout, self._is_paused = wire, loop, timeout, is_paused
        self._timer: asyncio.TimerHandle | None = None
        self._n_before = 0
        self._has_read = False

    def begin(self) -> None:
        """Watches from now on until all is read."""
        if self._timer is None:
            self._arm(self._wire.get_write_buffer_size())

    def has_read(self) -> None:
        """Notes that the client has read enough for more to be written."""
        self._has_read = True

    def _arm(self, n_waiting: int) -> None:
        self._n_before, self._has_read = n_waiting, False
        self._timer = self._loop.call_later(self._timeout, self._look)

    def _look(self) -> None:
        self._timer = None
        n_waiting = self._wire.get_write_buffer_size()
        nothing_new = self._wire.is_closing() or self._is_paused()
        if nothing_new and not self._has_read and n_waiting >= self._n_before > 0:
            self._wire.abort()
        elif n_waiting:
            self._arm(n_waiting)

    def end(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
