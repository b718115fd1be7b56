"""Wire of a connection: its transport, with two things that transports of asyncio don't do."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable
from typing import Any

__all__ = ["START", "Wire"]

START = b"HTTP/1.1 "  # of every answer
LINGER = 1.0  # seconds that a client has to read an answer before which it sent more


class Wire:
    """A transport that can probe whether its client is still there, and that can close without losing an answer.

    A client that has shut its side down for writing (`nc -N`) and one that has closed its socket look alike, until
    something is sent: a host answers bytes for a socket that is gone with a reset. So bytes that every answer begins
    with are sent ahead of it, one at a time; what is written next is written without them.

    A socket that is closed with unread bytes resets its connection, and the client may lose the answer: `linger` ends
    the sending side, and closes the rest when the client has, or after a second.

    holds: no further bytes are read, also where reading is resumed. has_unread: whether the client may have sent bytes
    that will not be read.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop, has_unread: Callable[[], bool]) -> None:
        self._transport, self._loop, self._has_unread = transport, loop, has_unread
        self.write = transport.write
        self.holds = False
        self._n_early = 0
        self._lingering: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    # ---- reading

    def resume_reading(self) -> None:
        """Reads on, unless it holds."""
        if not self.holds:
            self._transport.resume_reading()

    def hold(self) -> None:
        """Reads nothing until `release`."""
        self.holds = True
        self._transport.pause_reading()

    def release(self) -> None:
        """Reads on."""
        self.holds = False
        self._transport.resume_reading()

    # ---- probing

    def probe(self) -> None:
        """Sends one more byte of the answer that comes, if its first ones aren't all sent."""
        if self._n_early < len(START):
            self._n_early += 1
            self.write = self._write_rest
            self._transport.write(START[self._n_early - 1 : self._n_early])

    def _write_rest(self, data: bytes) -> None:
        n_early, self._n_early = self._n_early, 0
        self.write = self._transport.write
        self._transport.write(data[n_early:])

    @property
    def hung_up(self) -> bool:
        """Whether the client's socket is known to be gone in both directions."""
        made = self._transport.get_extra_info("socket")
        if made is None or made.fileno() < 0:
            return self.is_closing()
        poll = select.poll()
        poll.register(made.fileno(), 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

    # ---- the end

    def is_closing(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._lingering is not None or bool(self._transport.is_closing())

    def close(self) -> None:
        """Closes when what waits is sent, in such a way that the client can read it."""
        if self._has_unread():
            self.linger()
        else:
            self._transport.close()

    def linger(self) -> None:
        """Closes when what waits is sent and the client has ended, too; after a second in any case."""
        if self.is_closing():
            return
        if not self._transport.can_write_eof():  # TLS
            self._transport.close()
            return
        self._lingering = self._loop.call_later(LINGER, self._transport.close)
        with contextlib.suppress(OSError):  # the client is gone already
            self._transport.write_eof()
        self.write = _drop
        self.release()

    def lost(self) -> None:
        """The connection is gone."""
        if self._lingering is not None:
            self._lingering.cancel()


def _drop(data: bytes) -> None:
    """Writes nothing: the sending side has ended."""
