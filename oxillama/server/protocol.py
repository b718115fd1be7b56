"""HTTP connections with limits that uvicorn has none for: time and size of headers, and connections of one address."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from collections import Counter
from typing import Any

from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError

__all__ = ["guarded"]

PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def raw_answer(error: ApiError) -> bytes:
    """A whole answer on the wire, after which the connection is closed."""
    body = json.dumps(error.openai()).encode()
    head = (
        f"HTTP/1.1 {error.status} {PHRASES[error.status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def base_protocol() -> Any:
    """uvicorn's protocol: the faster one, if httptools is installed."""
    try:
        importlib.import_module("httptools")
    except ImportError:
        return importlib.import_module("uvicorn.protocols.http.h11_impl").H11Protocol
    return importlib.import_module("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol


def guarded(config: ServerConfig, base: Any = None) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these limits; `scope["state"]["abort"]` closes its connection at once."""
    peers: Counter[str] = Counter()
    parent: Any = base or base_protocol()

    class GuardedProtocol(parent):  # type: ignore[misc]
        """A connection, of a client that may be slow, silent, or many."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.app_state: dict[str, Any] = {**self.app_state, "abort": self.abort}
            self._head_timer: asyncio.TimerHandle | None = None
            self._n_head = 0
            self._peer = ""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            made = transport.get_extra_info("socket")
            if made is not None and made.family != socket.AF_UNIX:
                # Headers and body are written apart: the second would wait 40 ms for the client to confirm the first.
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peer = self.client[0] if self.client else ""
            peers[self._peer] += 1
            if len(self.connections) > config.max_connections:
                self._refuse(ApiError(503, "too_many_connections", "the server has as many connections as it may"))
            elif self._peer and peers[self._peer] > config.max_peer_connections:
                self._refuse(ApiError(503, "too_many_connections", "this address has as many connections as it may"))
            else:
                self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            peers[self._peer] -= 1
            if not peers[self._peer]:
                del peers[self._peer]
            self._disarm()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._begun or self._has_more:
                super().data_received(data)
                if not self._begun and self._head_timer is None:
                    self._arm()
                return
            self._n_head += len(data)
            super().data_received(data)
            if self._begun:
                self._n_head = 0
                self._disarm()
            elif self._n_head > config.max_headers:
                self._refuse(ApiError(431, "headers_too_large", f"headers may have {config.max_headers} bytes"))
            elif self._head_timer is None:
                self._arm()

        def send_400_response(self, msg: str) -> None:
            self._refuse(ApiError(400, "invalid_http", msg))

        def abort(self) -> None:
            """Closes the connection, and drops what wasn't sent."""
            self.transport.abort()

        @property
        def _begun(self) -> bool:
            """Whether the headers of a request are here whose answer is not."""
            return self.cycle is not None and not self.cycle.response_complete

        @property
        def _has_more(self) -> bool:
            """Whether the body of a request that was answered already is still coming."""
            return self.cycle is not None and self.cycle.response_complete and bool(self.cycle.more_body)

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
            self._disarm()
            if not self.transport.is_closing():
                self.transport.write(raw_answer(error))
                self.transport.close()

    return GuardedProtocol
