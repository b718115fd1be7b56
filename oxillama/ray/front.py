"""Front: the ASGI application that passes requests on to replicas, and says so when one is lost."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from oxillama._util.threads import in_thread
from oxillama.ray.prefix import ForwardedRequest, prompt_of
from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError
from oxillama.server.exchange import dumped, new_id
from oxillama.server.headers import encoded

__all__ = ["ATTEMPTS", "Front"]

log = logging.getLogger("oxillama")

ATTEMPTS = 3  # replicas that a request is given to, as long as nothing was sent
MARGIN = 10.0  # seconds that a replica may be silent beyond `request_timeout`
LARGE_BODY = 64 << 10  # bytes of JSON from which it is read in another thread
ONCE = ("/admin/", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")  # paths of requests that change a replica
PASSED = (
    "type", "method", "path", "raw_path", "query_string", "headers", "root_path", "http_version", "scheme", "client",
    "server",
)  # fmt: skip


class _Answer:
    """State of an answer: what was sent, and its end after a failure. Its headers wait for the first part of its
    body."""

    def __init__(self, send: Any, path: str, method: str) -> None:
        self._send, self._path, self._method = send, path, method
        self._start: dict[str, Any] = {}
        self.started = self.ended = False

    async def send(self, message: dict[str, Any]) -> None:
        """Sends one message."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if not self.started:
            self.started = True
            await self._send(self._start)
        self.ended = not message.get("more_body", False)
        await self._send(message)

    @property
    def _streams(self) -> bool:
        kinds = [value for name, value in self._start["headers"] if name == b"content-type"]
        return any(kind.startswith(b"text/event-stream") for kind in kinds)

    async def fail(self, error: ApiError) -> None:
        """An error in place of the answer, or as the last event of a stream. Raises it where neither can be sent."""
        anthropic = self._path.endswith(("/v1/messages", "/v1/messages/count_tokens"))
        body = dumped(error.anthropic(new_id("req_")) if anthropic else error.openai())
        if not self.started:
            headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
            await self.send({"type": "http.response.start", "status": error.status, "headers": encoded(headers)})
            await self.send({"type": "http.response.body", "body": b"" if self._method == "HEAD" else body})
        elif self._streams:
            event = (b"event: error\n" if anthropic else b"") + b"data: " + body + b"\n\n"
            await self.send({"type": "http.response.body", "body": event})
        elif not self.ended:
            raise error  # the connection is closed before the length that was announced


class Front:
    """Takes requests for replicas of a deployment. An object of it travels to the nodes by pickle.

    A request is given to another replica when the first one is lost and nothing was sent; later, a stream ends with an
    error. None waits longer for a replica than `queue_timeout`, nor for an answer than `request_timeout`.
    """

    def __init__(self, deployment: str, server: ServerConfig) -> None:
        self._deployment, self._server = deployment, server
        self._handle: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The application."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
        else:
            await send({"type": "websocket.close", "code": 1000, "reason": "there are no WebSockets here"})

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body = await _read(receive, self._server.max_body)
        if body is None:
            return
        request = await _forwarded(scope, body)
        answer = _Answer(send, scope["path"], scope["method"])
        relay = asyncio.ensure_future(self._relay(request, answer))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((relay, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            relay.cancel()
            with suppress(asyncio.CancelledError):
                await relay

    async def _relay(self, request: ForwardedRequest, answer: _Answer) -> None:
        """Sends the answer of a replica. Errors that a replica answered are no errors here."""
        known = _failures()
        attempts = 1 if request.scope["path"].startswith(ONCE) else ATTEMPTS
        for left in reversed(range(attempts)):
            try:
                async for messages in self._messages(request):
                    for message in messages:
                        await answer.send(message)
                return
            except ApiError as error:
                await answer.fail(error)
                return
            except known as error:
                found = _as_answer(error)
                log.warning("a replica of %s failed: %s", self._deployment, type(error).__name__)
                if answer.started or found.code != "replica_lost" or not left:
                    await answer.fail(found)
                    return

    async def _messages(self, request: ForwardedRequest) -> AsyncIterator[list[dict[str, Any]]]:
        """Messages of a replica's answer. Raises ApiError if none takes the request, or none answers, within its
        time."""
        if self._handle is None:
            from ray import serve

            self._handle = serve.get_deployment_handle(self._deployment).options(stream=True)
        stream = self._handle.answer.remote(request)
        patience, refusal = self._server.queue_timeout, (503, "queue_timeout", "no replica took the request in time")
        try:
            while True:
                try:
                    async with asyncio.timeout(patience):
                        messages = await anext(stream)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise ApiError(*refusal, headers={"Retry-After": "5"}) from None
                yield messages
                patience = self._server.request_timeout + MARGIN
                refusal = (504, "timeout", "the replica doesn't answer")
        finally:
            stream.cancel()  # nothing, if it has ended


def _failures() -> tuple[type[Exception], ...]:
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    return (RayError, RayServeException)


def _as_answer(error: Exception) -> ApiError:
    """Error of Ray as one over HTTP."""
    from ray.exceptions import RayTaskError
    from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

    if isinstance(error, BackPressureError):
        return ApiError(429, "queue_full", "too many requests wait for a replica", headers={"Retry-After": "1"})
    if isinstance(error, DeploymentUnavailableError):
        return ApiError(503, "engine_failed", "the model can't be used", headers={"Retry-After": "60"})
    if isinstance(error, RayTaskError):  # code of the replica raised it
        return ApiError(500, "internal_error", "the request failed by a fault of the server")
    return ApiError(503, "replica_lost", "the replica that answered is gone", headers={"Retry-After": "1"})


async def _forwarded(scope: Any, body: bytes) -> ForwardedRequest:
    prompt, key = await in_thread(_prompt, body) if len(body) > LARGE_BODY else _prompt(body)
    return ForwardedRequest(
        {name: scope[name] for name in PASSED if name in scope}, body, prompt or "-", key or new_id()
    )


def _prompt(body: bytes) -> tuple[str, str]:
    try:
        fields = json.loads(body)
        return prompt_of(fields) if isinstance(fields, dict) else ("", "")
    except (ValueError, RecursionError):  # the replica says what is wrong with it
        return "", ""


async def _read(receive: Any, most: int) -> bytes | None:
    """The body, as far as one byte more than there may be, which the replica refuses; None if the client has left."""
    body = bytearray()
    while len(body) <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body[: most + 1])


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
