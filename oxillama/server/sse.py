"""Events of streams: written as they come, with a sign of life in silence, to clients that read them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from oxillama.server.errors import ClientGone
from oxillama.server.json_pieces import Body, as_json

__all__ = ["DONE", "SSE", "Event", "EventFormat", "EventWriter", "JsonLines", "ServerSentEvents", "as_json"]

# The name of an event, None where the dialect has none, and what is in it, or its JSON.
Event = tuple[str | None, Body | str]

DONE = b"data: [DONE]\n\n"
TICK = 0.5  # seconds between looks at a stream


class EventFormat(Protocol):
    """Format of a stream's events. headers: of the answer."""

    headers: Mapping[str, str]

    def encoded(self, events: Iterable[Event], text_of: Callable[[object], str] = as_json) -> bytes:
        """Events as they are sent. text_of: JSON of what is in one."""

    def alive(self) -> bytes:
        """Event that is sent in silence, which changes nothing for a client."""


def stream_headers(content_type: str) -> dict[str, str]:
    """Headers of a stream, which nothing on its way is to keep, to change or to collect."""
    return {"Content-Type": content_type, "Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}


class ServerSentEvents:
    """Events of `text/event-stream`.

    silence: what is sent in silence, or a function that makes its event; a comment if the dialect has nothing for it.
    """

    headers: Mapping[str, str] = stream_headers("text/event-stream; charset=utf-8")

    def __init__(self, silence: bytes | Callable[[], Event] = b": keep-alive\n\n") -> None:
        self._silence = silence

    def encoded(self, events: Iterable[Event], text_of: Callable[[object], str] = as_json) -> bytes:
        text = ""
        for name, data in events:
            head = "" if name is None else f"event: {name}\n"
            text += f"{head}data: {data if isinstance(data, str) else text_of(data)}\n\n"
        return text.encode()

    def alive(self) -> bytes:
        return self._silence if isinstance(self._silence, bytes) else self.encoded([self._silence()])


SSE = ServerSentEvents()


class JsonLines:
    """Objects of `application/x-ndjson`, one a line; events have no names there."""

    headers: Mapping[str, str] = stream_headers("application/x-ndjson")

    def __init__(self, empty: Callable[[], Event]) -> None:
        """empty: an event that adds nothing, for silence: there are no comments, and clients parse every line."""
        self._empty = empty

    def encoded(self, events: Iterable[Event], text_of: Callable[[object], str] = as_json) -> bytes:
        return "".join(f"{data if isinstance(data, str) else text_of(data)}\n" for _, data in events).encode()

    def alive(self) -> bytes:
        return self.encoded([self._empty()])


class EventWriter:
    """Writes the body of a stream, and looks after its client within an `async with` block.

    A client that has read nothing for `stall` seconds, or for which more than `most` bytes wait, is cut off: the block
    ends with ClientGone, and the connection is closed at once. In silence it gets what `alive` gives.

    behind: bytes that wait to be written, beside those that are under way. on_half_closed: where functions are noted
    that are to be called when the client has shut its side down: from then on a sign of life is sent at once, and more
    often, since a client that has ended altogether is found by that alone.
    """

    def __init__(
        self, send: Any, *, stall: float, most: int, ping: float, behind: Callable[[], int],
        abort: Callable[[], object], alive: Callable[[], bytes], on_half_closed: list[Callable[[], None]] | None = None,
    ) -> None:  # fmt: skip
        self._send, self._stall, self._most, self._ping = send, stall, most, ping
        self._behind, self._abort, self._alive = behind, abort, alive
        self._on_half_closed = [] if on_half_closed is None else on_half_closed
        self._since = time.monotonic()  # of the last write, or of the one under way
        self._writing = self.cut = False
        self._task: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._on_half_closed.append(self._hurry)
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_half_closed.remove(self._hurry)
        if self._timer is not None:
            self._timer.cancel()
        if self._pinging is not None:
            self._pinging.cancel()
        if self.cut and isinstance(error, asyncio.CancelledError):
            if self._task is not None:
                self._task.uncancel()
            raise ClientGone from None

    async def write(self, piece: bytes) -> None:
        """Writes a piece, when the connection takes it."""
        self._since, self._writing = time.monotonic(), True
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._since, self._writing = time.monotonic(), False

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(min(TICK, self._stall, self._ping), self._look)

    def _look(self) -> None:
        idle = time.monotonic() - self._since
        if self._writing and (idle > self._stall or self._behind() > self._most):
            self.cut = True
            self._abort()
            if self._task is not None:
                self._task.cancel()
            return
        if idle >= self._ping:
            self._show_life()
        self._arm()

    def _show_life(self) -> None:
        if not self._writing:
            self._pinging = asyncio.ensure_future(self._write_alive())

    async def _write_alive(self) -> None:
        """Writes a sign of life that is made now: events that were written since it was wanted have earlier numbers."""
        if not self._writing:
            await self.write(self._alive())

    def _hurry(self) -> None:
        self._ping = min(self._ping, TICK)
        self._show_life()
