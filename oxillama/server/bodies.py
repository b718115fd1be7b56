"""Bodies of requests: read within limits of size and time, and parsed as JSON."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from oxillama.chat.calls import read_json
from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError, ClientGone

__all__ = ["LEAST_RATE", "MAX_DEPTH", "parse_body", "read_body"]

LEAST_RATE = 1024  # bytes a second, once the time that every body has is over
MAX_DEPTH = 320


async def read_body(receive: Any, headers: dict[str, str], config: ServerConfig) -> bytes:
    """The whole body. Raises ApiError for one that is too large or comes too slowly, ClientGone if it is cut off."""
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > config.max_body:
        raise too_large(config)
    pieces: list[bytes] = []
    size, began = 0, time.monotonic()
    while True:
        wait = began + config.body_timeout + size / LEAST_RATE - time.monotonic()
        try:
            async with asyncio.timeout(max(wait, 0.001)):
                message = await receive()
        except TimeoutError:
            text = f"the body came slower than {LEAST_RATE} bytes a second after {config.body_timeout:g} s"
            raise ApiError(408, "body_timeout", text, headers={"Connection": "close"}) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > config.max_body:
            raise too_large(config)
        if not message.get("more_body", False):
            return b"".join(pieces)


def too_large(config: ServerConfig) -> ApiError:
    text = f"the body has more than {config.max_body} bytes: send less, or start the server with a larger --max-body"
    return ApiError(413, "body_too_large", text, headers={"Connection": "close"})


def parse_body(body: bytes, content_type: str) -> dict[str, Any]:
    """The JSON object of a body. Raises ApiError for anything else.

    Refused are other types of content, which forms of other sites could send; keys that come twice, NaN and Infinity,
    halves of surrogate pairs, and values that nest deeper than any field may.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json":
        text = f"the body must be JSON with Content-Type: application/json, not {kind or 'without a type'!r:.60}"
        raise ApiError(415, "unsupported_media_type", text)
    try:
        value = read_json(body.decode("utf-8-sig"))  # a file may be sent as it is, with its byte order mark
    except UnicodeDecodeError as error:
        raise ApiError(400, "invalid_json", f"the body is not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise ApiError(400, "invalid_json", f"the body is no JSON: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", f"the body must be a JSON object, not {type(value).__name__}")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        check_nesting(value)
    return value


def check_nesting(value: dict[str, Any]) -> None:
    """Raises ApiError, which names the field, for one that nests deeper than MAX_DEPTH."""
    for name, one in value.items():
        level = [one]
        for _ in range(MAX_DEPTH):
            inner = (item for item in level if isinstance(item, dict | list))
            level = [x for item in inner for x in (item.values() if isinstance(item, dict) else item)]
            if not level:
                break
        else:
            raise ApiError(400, "invalid_value", f"{name:.64} must nest at most {MAX_DEPTH} deep", f"{name:.64}")
