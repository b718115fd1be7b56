"""Upgrades that aren't made: what httptools leaves unread behind headers that offer another protocol."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

__all__ = ["next_parser", "unread_from"]

_FRAME = (b"content-length", b"transfer-encoding")


class _Callbacks:
    """Callbacks of a parser, told to the connection: of its first request, whose headers are known already, the body
    alone. A parser looks each of them up once."""

    def __init__(self, connection: Any, has_body: bool) -> None:
        """has_body: whether the first request has one. Without, its end is known to the connection, too."""
        self._connection, self._has_body = connection, has_body
        self._is_first = True
        self.on_body = connection.on_body

    def on_message_begin(self) -> None:
        """A request begins."""
        if not self._is_first:
            self._connection.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of its address."""
        if not self._is_first:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers."""
        if not self._is_first:
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        """The end of its headers."""
        if not self._is_first:
            self._connection.on_headers_complete()

    def on_message_complete(self) -> None:
        """The end of its body."""
        is_known, self._is_first = self._is_first and not self._has_body, False
        if not is_known:
            self._connection.on_message_complete()


def unread_from() -> int | None:
    """Number of bytes that a parser of httptools read before it stopped at an upgrade, while that is handled; else
    None, as with h11, which reads on."""
    httptools = sys.modules.get("httptools")
    error = sys.exception()
    if httptools is None or not isinstance(error, httptools.HttpParserUpgrade):
        return None
    return int(error.args[0])


def next_parser(connection: Any, headers: Iterable[tuple[bytes, bytes]]) -> tuple[Any, bool]:
    """A parser of httptools for what follows a request with these headers, and whether that has a body, which is told
    to the connection first; then it is told of further requests.

    Clients that know HTTP/2 offer it with each request (`Upgrade: h2c`), and such a parser stops behind the headers,
    as if the rest were of the other protocol already. A server that says nothing of it speaks HTTP/1.1 (RFC 9110,
    section 7.8).
    """
    frame = [(name, value) for name, value in headers if name in _FRAME]
    has_body = any(name != b"content-length" or value.strip(b" \t0") for name, value in frame)
    parser = importlib.import_module("httptools").HttpRequestParser(_Callbacks(connection, has_body))
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the connection's own has it
    lines = b"".join(b"%s: %s\r\n" % pair for pair in frame)
    parser.feed_data(b"POST / HTTP/1.1\r\n" + (lines or b"Content-Length: 0\r\n") + b"\r\n")
    return parser, has_body
