"""HTTP connections with limits that uvicorn has none for: time and size of headers, and connections of one address."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from collections.abc import Callable
from typing import Any

from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError, headers_too_large, too_many_connections
from oxillama.server.headers import encoded
from oxillama.server.peers import PeerCounts, Peers
from oxillama.server.upgrade import next_parser, unread_from
from oxillama.server.watches import EndWatch, StallWatch
from oxillama.server.wire import Wire

__all__ = ["guarded"]

HEAD_PIECE, BODY_PIECE = 4 << 10, 16 << 10  # bytes that are parsed at a time
MOST_LINGERING = 32  # connections that are refused and closed slowly

PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def raw_answer(error: ApiError) -> bytes:
    """A whole answer on the wire, after which the connection is closed."""
    body = json.dumps(error.openai()).encode()
    known = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
    lines = b"".join(b"%s: %s\r\n" % pair for pair in encoded(known | {"Connection": "close"}))
    return f"HTTP/1.1 {error.status} {PHRASES[error.status]}\r\n".encode() + lines + b"\r\n" + body


def base_protocol() -> Any:
    """uvicorn's protocol: the faster one, if httptools is installed."""
    try:
        importlib.import_module("httptools")
    except ImportError:
        return importlib.import_module("uvicorn.protocols.http.h11_impl").H11Protocol
    return importlib.import_module("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol


class Connections:
    """Counts of connections: of each client, and of those that are refused and closed slowly."""

    def __init__(self, config: ServerConfig) -> None:
        self._config, self._peers = config, Peers(config.trusted_proxy)
        self._of_peers = PeerCounts()
        self.n_lingering = 0

    def begin(self, client: tuple[str, int] | None) -> str | None:
        """Counts one. Returns what its client is counted as; None where it stands for many."""
        peer = self._peers.counted_as(client[0]) if client else None
        self._of_peers.begin(peer)
        return peer

    def fault(self, peer: str | None, n_open: int) -> ApiError | None:
        """Why a connection is one too many."""
        if n_open > self._config.max_connections:
            return too_many_connections("the server")
        if self._of_peers.number(peer) > self._config.max_peer_connections:
            return too_many_connections("this address")
        return None

    def end(self, peer: str | None) -> None:
        """Forgets one."""
        self._of_peers.end(peer)


def guarded(config: ServerConfig, base: Any = None) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these limits.

    Of `scope["state"]`, "abort" closes the connection at once, and "on_half_closed" are functions to call when its
    client has shut its side down, and may have ended altogether, which only bytes that are sent to it tell.
    """
    open_now = Connections(config)
    parent: Any = base or base_protocol()

    class GuardedProtocol(parent):  # type: ignore[misc]
        """A connection, of a client that may be slow, silent, or many.

        A request is parsed when the one before it is answered; bytes of further ones wait, and no more are read.
        """

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._on_half_closed: list[Callable[[], None]] = []
            own = {"abort": self.abort, "on_half_closed": self._on_half_closed}
            self.app_state: dict[str, Any] = {**self.app_state, **own}
            self._head_timer: asyncio.TimerHandle | None = None
            self._stall: StallWatch | None = None
            self._end: EndWatch | None = None  # since the client has shut its side down
            self._peer: str | None = None
            self._n_head = 0
            self._answering: Any = None  # the cycle that is, of several whose requests came together
            self._held = self._piece = b""
            self._unread: bytes | None = None  # of a piece, behind headers that offer another protocol
            self._broken: ApiError | None = None
            self._is_refused = False

        # ---- the connection

        def connection_made(self, transport: asyncio.Transport) -> None:
            wire = Wire(transport, self.loop, lambda: self._has_more or bool(self._held))
            super().connection_made(wire)
            self._stall = StallWatch(wire, self.loop, config.stall_timeout, lambda: self.flow.write_paused)
            made = transport.get_extra_info("socket")
            if made is not None and made.family != socket.AF_UNIX:
                # Headers and body are written apart: the second would wait 40 ms for the client to confirm the first.
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peer = open_now.begin(self.client)
            fault = open_now.fault(self._peer, len(self.connections))
            if fault is None:
                self._arm()
            else:
                self._refuse(fault)

        def connection_lost(self, exc: Exception | None) -> None:
            open_now.end(self._peer)
            open_now.n_lingering -= self._is_refused
            self._disarm()
            for watch in (self._stall, self._end):
                if watch is not None:
                    watch.end()
            self.transport.lost()
            self._held = b""
            cycle = self._answering
            if cycle is not None and not cycle.response_complete:  # uvicorn tells the one that came last alone
                cycle.disconnected = True
                cycle.message_event.set()
            super().connection_lost(exc)

        def eof_received(self) -> bool | None:
            """Keeps the connection of a client that still reads: it gets the answers to what it has sent.

            With TLS asyncio closes it in any case.
            """
            if self.scheme == "https" or self.transport.is_closing() or not (self._held or self._owes):
                return None
            self._end = EndWatch(self.transport, self.loop, lambda: self._owes, self._is_silent)
            for function in list(self._on_half_closed):
                function()
            return True

        def _is_silent(self) -> bool:
            cycle = self._answering or self.cycle
            return not cycle.response_started

        def abort(self) -> None:
            """Closes the connection, and drops what wasn't sent."""
            self.transport.abort()

        # ---- what comes

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._held:
                self._held += data
            else:
                self._parse(data)

        def _parse(self, data: bytes) -> None:
            """Parses what came, up to the end of a request that isn't answered yet, or of a piece behind it."""
            at = 0
            while at < len(data) and not self.transport.is_closing():
                if self._is_answering:
                    self._held = data[at:]
                    self.transport.hold()
                    return
                most = BODY_PIECE if self._has_more else min(config.max_headers - self._n_head, HEAD_PIECE)
                if most <= 0:
                    self._refuse(headers_too_large(config.max_headers))
                    return
                self._parse_piece(data[at : at + most])
                at += most

        def _parse_piece(self, piece: bytes) -> None:
            if not self._has_more:
                self._n_head += len(piece)
            unread: bytes | None = piece
            while unread is not None and not self.transport.is_closing():
                self._piece, self._unread = unread, None
                super().data_received(unread)
                unread = self._unread
            if self.transport.is_closing():
                return
            if self._is_read:
                self.cycle.more_body = False
            if self._begun:
                self._n_head = 0
                self._disarm()
            elif self._head_timer is None:
                self._arm()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self.cycle.more_body = False  # also of a request that was answered already

        def _unsupported_upgrade_warning(self) -> None:
            """Goes on with HTTP/1.1, with another parser where this one has stopped."""
            at = unread_from()
            if at is None:
                return
            self.parser, self.cycle.more_body = next_parser(self, self.headers)
            self._unread = self._piece[at:] or None

        def send_400_response(self, msg: str) -> None:
            error = ApiError(400, "invalid_http", msg)
            self._drop_broken()
            if self._owes:  # what came before it is answered first
                self._broken = error
            else:
                self._refuse(error)

        def _drop_broken(self) -> None:
            """Forgets a request whose body is broken off, and that waits behind others in httptools' pipeline."""
            pipeline = getattr(self, "pipeline", None)
            if pipeline and self._has_more:
                pipeline.popleft()
                self.cycle = pipeline[0][0] if pipeline else self._answering

        @property
        def _owes(self) -> bool:
            """Whether a request is here as a whole whose answer is not, be it before one whose body still comes."""
            first = self._answering
            return self._is_answering or (first is not None and first is not self.cycle and not first.response_complete)

        @property
        def _begun(self) -> bool:
            """Whether the headers of a request are here whose answer is not."""
            return self.cycle is not None and not self.cycle.response_complete

        @property
        def _has_more(self) -> bool:
            """Whether the body of a request is still coming, which may be answered already."""
            return self.cycle is not None and bool(self.cycle.more_body)

        @property
        def _is_answering(self) -> bool:
            """Whether a request is here as a whole whose answer is not."""
            return self._begun and not self.cycle.more_body

        @property
        def _is_read(self) -> bool:
            """Whether h11 has read the rest of a request that was answered before its end."""
            state = getattr(self, "conn", None)
            return state is not None and self._has_more and not self._begun and state.their_state is state.our_state

        # ---- what is answered

        def _start_asgi_task(self, cycle: Any, app: Any) -> None:
            self._answering = cycle
            super()._start_asgi_task(cycle, app)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._stall is not None and self.transport.get_write_buffer_size():
                self._stall.begin()
            if self._is_answering or self.transport.is_closing():  # by now the next one, maybe
                return
            if self._broken is not None:
                self._refuse(self._broken)
            elif self._held:
                data, self._held = self._held, b""
                self.transport.release()
                self._parse(data)
            if self._end is not None and not self._owes:
                self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stall is not None:
                self._stall.begin()

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stall is not None:
                self._stall.has_read()

        # ---- refusals

        def _arm(self) -> None:
            self._head_timer = self.loop.call_later(config.header_timeout, self._timed_out)

        def _disarm(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _timed_out(self) -> None:
            self._head_timer = None
            if self._begun or self.transport.is_closing():
                return
            if not self._n_head or self._has_more:  # nothing was asked that has no answer
                self.transport.close()
            else:
                self._refuse(ApiError(408, "header_timeout", f"headers took longer than {config.header_timeout:g} s"))

        def _refuse(self, error: ApiError) -> None:
            """Answers with an error, and closes: slowly, so that it arrives, unless many are closed so already."""
            self._disarm()
            if self.transport.is_closing():
                return
            self.transport.write(raw_answer(error))
            if open_now.n_lingering < MOST_LINGERING:
                open_now.n_lingering += 1
                self._is_refused = True
                self.transport.linger()
            else:
                self.transport.close()

    return GuardedProtocol
