"""Bodies of requests: read within limits of size and time, unpacked, and parsed as JSON."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
import zlib
from collections.abc import Mapping
from typing import Any

from oxillama._util.json_tree import JsonError, JsonTooMuch, JsonTree
from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError, ClientGone
from oxillama.server.reading import Reading

__all__ = ["LEAST_RATE", "MAX_DEPTH", "parse_body", "read_body", "unpacked"]

LEAST_RATE = 1024  # bytes a second, once the time that every body has is over
MAX_DEPTH = 320
# Of one body. A conversation of as many messages as there may be, each with parts, has fewer.
MAX_PARTS = 1 << 17
MAX_KEYS = 1 << 18
CHECKED = 1 << 16  # bytes or characters that are looked at together, while no other thread runs
MAX_PLACE = 200  # characters of the place of a string
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair: whole ones are single characters
# Fields whose objects have keys of the client's own; `input` at the beginning has items.
_WRITTEN = frozenset((
    "arguments", "chat_template_kwargs", "client_metadata", "input", "input_schema", "json_schema", "metadata",
    "parameters", "schema",
))  # fmt: skip
_GZIP = zlib.MAX_WBITS | 16
# Content-Encoding -> how zlib calls its format. Some send deflate without the header that it has.
_PACKED = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS)}


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


def unpacked(body: bytes, headers: Mapping[str, str], config: ServerConfig) -> bytes:
    """The body as it was before it was packed, by gzip or deflate.

    Raises ApiError for another Content-Encoding (415), for one that the body doesn't have (400), and for more bytes
    than a body may have, of which no more are unpacked than that (413).
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _PACKED:
        text = f"Content-Encoding must be gzip, deflate or identity, not {encoding!r:.60}"
        raise ApiError(415, "unsupported_encoding", text, headers={"Accept-Encoding": "gzip, deflate"})
    for bits in _PACKED[encoding]:
        try:
            return _unpacked(body, bits, config)
        except zlib.error:
            continue
    raise ApiError(400, "invalid_body", f"the body is not what its Content-Encoding, {encoding}, says")


def _unpacked(body: bytes, bits: int, config: ServerConfig) -> bytes:
    """Raises zlib.error for anything else than one whole stream."""
    packed = zlib.decompressobj(bits)
    found = packed.decompress(body, config.max_body + 1)
    if len(found) > config.max_body:
        raise too_large(config)
    if not packed.eof or packed.unused_data:
        raise zlib.error
    return found


def parse_body(body: bytes, content_type: str, reading: Reading | None = None) -> dict[str, Any]:
    """The JSON object of a body. Raises ApiError for anything else.

    Refused are other types of content, which forms of other sites could send; keys that come twice, NaN and Infinity,
    values that nest deeper than any field may, and more lists and objects than any request needs. Half of a surrogate
    pair is no character, and becomes U+FFFD, which `reading` notes. However large a body is, other threads run
    meanwhile.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json":
        text = f"the body must be JSON with Content-Type: application/json, not {kind or 'without a type'!r:.60}"
        raise ApiError(415, "unsupported_media_type", text)
    body = body.removeprefix(codecs.BOM_UTF8)  # a file may be sent as it is, with its byte order mark
    _check_utf8(body)
    tree = JsonTree(body, most_depth=MAX_DEPTH, most_parts=MAX_PARTS, most_keys=MAX_KEYS)
    try:
        value = tree.read()
    except JsonTooMuch as error:
        field = f"{error.field:.64}"
        code = "invalid_value" if field else "invalid_json"
        raise ApiError(400, code, f"{_HALF.sub('?', field) or 'the body'} {error}", field or None) from None
    except JsonError as error:
        raise ApiError(400, "invalid_json", f"the body is no JSON: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", f"the body must be a JSON object, not {type(value).__name__}")
    if tree.has_halves:
        whole: dict[str, Any] = _mended("", value, reading or Reading())
        return whole
    return value


def _check_utf8(body: bytes) -> None:
    """Raises ApiError for bytes that are no UTF-8, piece by piece: other threads run between them."""
    start = 0
    while start < len(body):
        end = start + CHECKED
        while end < len(body) and start + CHECKED - end < 3 and body[end] & 0xC0 == 0x80:
            end -= 1  # a character isn't cut
        try:
            body[start:end].decode()
        except UnicodeDecodeError as error:
            raise ApiError(400, "invalid_json", f"the body is not UTF-8 at byte {start + error.start}") from None
        start = end


def _mended(place: str, value: Any, reading: Reading) -> Any:
    """A value of JSON with U+FFFD for halves of surrogate pairs. Raises ApiError for keys that become alike."""
    if isinstance(value, str):
        if not _HALF.search(value):
            return value
        why = "it holds half of a surrogate pair, which is no character"
        reading.leave_out(f"{place[:MAX_PLACE]}=surrogate", why, "surrogate")
        pieces = (value[i : i + CHECKED] for i in range(0, len(value), CHECKED))
        return "".join([_HALF.sub("\ufffd", piece) for piece in pieces])
    place = place[:MAX_PLACE]  # however deep it is
    if isinstance(value, list):
        return [
            _mended(f"{place}[{i}]", one, reading) if isinstance(one, str | list | dict) else one
            for i, one in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, one in value.items():
        key = _HALF.sub("\ufffd", name)
        inner = place if _holds_content(place) else f"{place}.{key:.64}" if place else f"{key:.64}"
        found[key] = _mended(inner, one, reading)
        if key != name:
            reading.leave_out(f"{inner[:MAX_PLACE]}=surrogate", "its name holds half of a surrogate pair", "surrogate")
    if len(found) < len(value):
        raise ApiError(400, "invalid_json", "the body is no JSON: an object has the same key twice")
    return found


def _holds_content(place: str) -> bool:
    """Whether the keys of an object there are content, and no names of fields."""
    outer, _, name = place.rpartition(".")
    return name.partition("[")[0] in _WRITTEN and (bool(outer) or not name.startswith("input"))
