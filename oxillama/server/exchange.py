"""Exchange: one request and its answer, from its headers to the line in the log."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from oxillama._util.freeing import free, parts_within
from oxillama.server.admission import Slot
from oxillama.server.auth import ANYONE, Key, anyone, cors_headers
from oxillama.server.bodies import parse_body, read_body, unpacked
from oxillama.server.errors import ApiError, ClientGone, api_error
from oxillama.server.field_types import Reading, Record, Values
from oxillama.server.headers import encoded, listed
from oxillama.server.json_pieces import as_json, written_parts
from oxillama.server.models import Chosen
from oxillama.server.service import Service

__all__ = ["METHODS", "Exchange", "UsageRecord", "dumped", "failure", "new_id"]

log = logging.getLogger("oxillama")

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LETTERS = (b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" * 5)[:256]  # one for each byte
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
T = TypeVar("T")
WRITTEN = 4 << 20  # bytes of an answer that are given to the connection at once; larger ones go in parts
PART = 1 << 20
LARGE_BODY = 64 << 10  # bytes of JSON from which it is parsed in another thread


def new_id(prefix: str = "") -> str:
    """A prefix and 24 random letters and digits."""
    return prefix + os.urandom(24).translate(_LETTERS).decode()


class UsageRecord:
    """Usage of an exchange, for the log and the metrics. failed: code of an error that ended a stream. n_truncated:
    texts of which some was left out."""

    def __init__(self) -> None:
        self.model = "-"
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = self.n_truncated = 0
        self.first_token: float | None = None
        self.max_tokens: int | None = None
        self.queued = 0.0
        self.finish_reason = "-"
        self.failed: str | None = None
        self.content: str | None = None


class Exchange:
    """Exchange of one request and its answer.

    headers: names in lower case; of those that come twice, the last. gone: the client has left. n_read: bytes of the
    body. status, n_bytes: of what was sent. route, parameters: the pattern of the path, and its parts. place: in the
    gate, of a request that a model works on. warnings: what the header of warnings says. peer: the address that it
    comes from, "" of none. forwarded_as: what it is counted as, if a proxy tells it.
    on_half_closed: functions to call when the client has shut its side down, and may have ended altogether.
    """

    def __init__(self, service: Service, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        self.service, self.scope = service, scope
        self.receive, self._send = receive, send
        self.headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        self.method = scope["method"]
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # of a mounted application
        self.path = path[:-1] if path.endswith("/") and path != "/" else path
        given = self.headers.get("x-request-id", "")
        self.id = given if _ID.fullmatch(given) else new_id("req_")
        self.is_admin = False
        self.began = time.perf_counter()
        self.usage = UsageRecord()
        self.place: Slot | None = None
        self.route = "other"
        self.parameters: Mapping[str, str] = {}
        self.status, self.n_bytes, self.n_read = 0, 0, 0
        self.gone = self.ended = False
        self.warnings: list[str] = []
        direct = (scope.get("client") or ("",))[0]
        self.peer = service.peers.client_of(direct, scope["headers"])
        self.key: Key = anyone(self.peer)
        self.forwarded_as = None if self.peer == direct else service.peers.counted_as(self.peer)
        self.reading = Reading(service.config.strict, service.config.lenient)
        self.task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._held: list[Any] = []  # parts of large values

    @property
    def anthropic(self) -> bool:
        """Whether errors have Anthropic's form."""
        return "/v1/messages/" in f"{self.path}/"

    @property
    def ollama(self) -> bool:
        """Whether the path is one of Ollama's API, whose errors have a form of their own."""
        return bool(self.path.startswith("/api/"))

    @property
    def content_type(self) -> str:
        """The type of the body. Where Ollama's API is spoken, programs send JSON under any, as `curl -d` does; what a
        page of a browser sends must say that it is JSON."""
        from_page = "origin" in self.headers or "sec-fetch-site" in self.headers
        return "application/json" if self.ollama and not from_page else self.headers.get("content-type", "")

    async def written(self, make: Callable[[], Any]) -> list[bytes]:
        """JSON of what make() gives, in parts, made in another thread, piece by piece."""
        return await self.service.answering(lambda: written_parts(make(), PART))

    async def elsewhere(self, make: Callable[[], T]) -> T:
        """make(), in another thread, when it is its key's turn."""
        return await self.service.elsewhere(make, self.key.owner)

    # ---- what came

    async def fields(self, record: Record) -> dict[str, Any]:
        """The fields of the body. Raises ApiError for a body that isn't as the record says."""
        body = await read_body(self.receive, self.headers, self.service.config)
        self._watcher = asyncio.ensure_future(self._watch())
        self.n_read = len(body)
        if not body and not record.fields:
            return {}
        kind = self.content_type
        if len(body) > LARGE_BODY or "content-encoding" in self.headers:
            return await self.elsewhere(lambda: self._read(record, body, kind))
        return self._read(record, body, kind)

    async def read_model(self, values: Values, name: str = "model") -> Chosen:
        """Reads which model or adapter a request names, and loads it. name: of the field. Raises ApiError."""
        return await self.service.models.use(values.get(name))

    def _read(self, record: Record, body: bytes, kind: str) -> dict[str, Any]:
        body = unpacked(body, self.headers, self.service.config)
        parsed = parse_body(body, kind, self.reading)
        if len(body) <= LARGE_BODY:
            return record.read("", parsed, self.reading)
        parts = parts_within(parsed)
        try:
            values = record.read("", parsed, self.reading)
        except BaseException:
            self._held += parts  # which the frames of the error hold
            raise
        self.hold(values)
        del parsed
        free(parts)
        return values

    def hold(self, *values: Any) -> None:
        """Keeps the parts of large values until the exchange has ended: then another thread frees them, in pieces,
        where the event loop would do so at once. To be called in another thread, too."""
        for value in values:
            self._held += parts_within(value)

    def let_go(self) -> None:
        """Called when nothing of the request is needed any more."""
        held, self._held = self._held, []
        if held:
            self.service.free(held)

    async def _watch(self) -> None:
        """Cancels the exchange when its client leaves."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.cancel()

    def cancel(self) -> None:
        """Ends it as if its client had left."""
        if self.task is not None and not self.ended:
            self.gone = True
            self.task.cancel()
            self.abort()

    def summary(self) -> dict[str, Any]:
        """Facts of the exchange for administrators: nothing of its content."""
        seconds = time.perf_counter() - self.began
        return {"id": self.id, "key": self.key.name, "path": self.path, "model": self.usage.model, "seconds": seconds}

    def leave(self) -> None:
        """Ends the exchange: its watcher stops."""
        self.ended = True
        watcher, self._watcher = self._watcher, None  # which refers to this, also when it has ended
        if watcher is not None:
            watcher.cancel()

    @property
    def on_half_closed(self) -> list[Callable[[], None]]:
        """Functions to call when the client shuts its side down; never called where the server can't watch the
        connection."""
        found: list[Callable[[], None]] = self.scope.get("state", {}).get("on_half_closed", [])
        return found

    def abort(self) -> None:
        """Closes the connection at once; what the server can't do that, it closes when what waits is sent."""
        close = self.scope.get("state", {}).get("abort")
        if close is not None:
            close()

    # ---- what is answered

    async def send(self, message: Any) -> None:
        """Sends one message of ASGI."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.reading.left_out:
                client = self.key.name if self.key.name != ANYONE.name else self.peer or "-"
                self.service.left_out.note(client, self.reading.left_out.values(), self.service.counts(self.key))
            extra = {
                "x-request-id": self.id,
                **self.service.gate.limits(self.key),
                **self._told(),
                **cors_headers(self.headers, self.method, self.service.config),
            }
            message["headers"] = [*message["headers"], *encoded(extra)]
        else:
            self.n_bytes += len(message.get("body", b""))
        await self._send(message)

    def _told(self) -> dict[str, str]:
        """Headers that say what the answer lacks."""
        found = {}
        if self.warnings:
            found["x-oxillama-warnings"] = listed(self.warnings, len(self.warnings), "; ")
        if self.reading.left_out:
            found["x-oxillama-left-out"] = self.reading.header
        return found

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Sends status and headers."""
        await self.send({"type": "http.response.start", "status": status, "headers": encoded(headers)})

    async def answer(
        self, body: bytes | list[bytes], kind: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends a whole answer. body: bytes, or the parts of a large one."""
        self.ended = True  # a client that leaves now cancels nothing
        parts = [body] if isinstance(body, bytes) else body
        n = sum(map(len, parts))
        await self.start(status, {"content-type": kind, "content-length": str(n), **(headers or {})})
        if self.method == "HEAD":
            parts = []
        last = b"".join(parts) if n <= WRITTEN else parts[-1] if parts else b""
        if n > WRITTEN:
            for part in parts[:-1]:
                await self._send_part(part)
        await self.send({"type": "http.response.body", "body": last})

    async def _send_part(self, part: bytes) -> None:
        """Sends a part of a large answer when the client has read enough of those before. Raises ClientGone if it never
        does."""
        try:
            async with asyncio.timeout(self.service.config.stall_timeout):
                await self.send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            self.abort()
            raise ClientGone from None

    async def json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Sends JSON of a small value."""
        await self.answer(dumped(value), "application/json", status, headers)

    async def refuse(self, error: ApiError) -> None:
        """Sends an error. Raises ClientGone if an answer has begun."""
        for metrics in self.service.counts(self.key):
            metrics.refused(error.code)
        self.usage.finish_reason = error.code
        if self.status:
            raise ClientGone
        body = error.ollama() if self.ollama else error.anthropic(self.id) if self.anthropic else error.openai()
        await self.json(body, error.status, {"cache-control": "no-store", **error.headers})


def dumped(value: Any) -> bytes:
    """JSON of a small value as it is sent."""
    return as_json(value).encode()


def failure(error: Exception, exchange: Exchange) -> ApiError:
    """Translates an error into one over HTTP; an unknown one is logged, and said without its content. No answer tells
    where the server has its files."""
    models = exchange.service.models
    found = api_error(error)
    if found is not None and found.code == "engine_failed":
        models.note_failure(exchange.usage.model, error.__context__ if found is error else error)
    if found is None:
        _note(error, exchange)
        found = ApiError(500, "internal_error", f"the request {exchange.id} failed by a fault of the server")
    found.message = models.without_paths(found.message)
    return found


def _note(error: Exception, exchange: Exchange) -> None:
    """Logs a fault, with its traceback unless the same one was logged less than a second ago."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    if exchange.service.repeats.is_new((type(error), place)) is not None:
        log.error("request %s failed", exchange.id, exc_info=error)
    else:
        log.error("request %s failed as another one did: %s at %s", exchange.id, type(error).__name__, place)
