"""Upgrades that aren't made: the body of a request that offers another protocol, which httptools leaves unread."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

__all__ = ["body_parser"]


class _BodyOf:
    """Callbacks of a parser for a body, told to the connection whose request it belongs to."""

    def __init__(self, connection: Any) -> None:
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete


def body_parser(connection: Any, headers: Iterable[tuple[bytes, bytes]]) -> Any:
    """A parser of httptools for the body that a request with these headers has; None if it has none.

    Clients that know HTTP/2 offer it with each request (`Upgrade: h2c`), and such a parser stops behind the headers,
    as if the rest were of the other protocol already. A server that says nothing of it speaks HTTP/1.1 (RFC 9110,
    section 7.8).
    """
    frame = [(name, value) for name, value in headers if name in (b"content-length", b"transfer-encoding")]
    if not frame or frame == [(b"content-length", b"0")]:
        return None
    parser = importlib.import_module("httptools").HttpRequestParser(_BodyOf(connection))
    parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(b"%s: %s\r\n" % pair for pair in frame) + b"\r\n")
    return parser
