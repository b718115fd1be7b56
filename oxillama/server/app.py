"""The ASGI application: routes, and what happens round each request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from oxillama.server.access import ALIVE, admit, note
from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError, ClientGone
from oxillama.server.exchange import Exchange, failure
from oxillama.server.heap import LARGE
from oxillama.server.models import served
from oxillama.server.pages import pages_of
from oxillama.server.routes import ROUTES
from oxillama.server.service import Service
from oxillama.server.tracing import Tracing
from oxillama.server.unserved import INSTEAD

__all__ = ["App", "create_app"]

Handler = Callable[[Exchange], Awaitable[None]]


class _Endpoint:
    """A route's ASGI application: calls a handler with the exchange."""

    def __init__(self, path: str, handler: Handler) -> None:
        self._path, self._handler = path, handler

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope["oxillama"]
        exchange.route, exchange.parameters = self._path, scope["path_params"]
        await self._handler(exchange)


class App:
    """A server's ASGI application; `service` is what its requests share.

    It serves by itself or mounted in another application. Its lifespan loads the models that are loaded at start, and
    closes those that it loaded.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.tracing = Tracing() if service.config.otel else None
        routes = [
            Route(e.path, _Endpoint(e.path, e.handler), methods=[e.method])
            for e in (*ROUTES, *pages_of(service.config))
        ]
        self._router = Router(routes, redirect_slashes=False, default=_unknown, lifespan=self._lifespan)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._router(scope, receive, lambda message: _tell(send, message))
        else:
            await send({"type": "websocket.close", "code": 1000, "reason": "there are no WebSockets here"})

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        loading = asyncio.ensure_future(self.service.look_after_models())
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await self.service.close()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        service = self.service
        exchange = Exchange(service, scope, receive, send)
        path = scope["path"] if scope["path"].endswith(exchange.path) else scope["path"][:-1]  # without its last slash
        scope = {**scope, "path": path, "oxillama": exchange, "app": self}
        service.open.add(exchange)
        service.forwarded.begin(exchange.forwarded_as)
        service.metrics.in_flight += 1
        tracing = self.tracing if exchange.path not in ALIVE else None
        span = None
        try:
            span = None if tracing is None else tracing.begin(exchange)
            await self._answer(exchange, scope)
        finally:
            exchange.leave()
            exchange.let_go()
            service.open.discard(exchange)
            service.forwarded.end(exchange.forwarded_as)
            service.metrics.in_flight -= 1
            if exchange.n_read + exchange.n_bytes > LARGE:
                service.heap.soon()
            status = note(exchange)
            if tracing is not None and span is not None:
                tracing.end(span, exchange, status)

    async def _answer(self, exchange: Exchange, scope: Any) -> None:
        """Handles a request, and sends an error for whatever goes wrong."""
        try:
            admit(exchange)
            if exchange.method == "OPTIONS" and exchange.headers.get("origin") in self.service.config.cors_origin:
                await exchange.answer(b"", "text/plain", 204)
                return
            await self.service.turns.take(exchange.key.owner)
            await self._router(scope, exchange.receive, exchange.send)
        except ClientGone:
            exchange.gone = True
        except asyncio.CancelledError:
            if exchange.gone:
                _uncancel()
            elif self.service.draining:
                _uncancel()
                await _refuse(exchange, ApiError(503, "draining", "the server ends", headers={"Retry-After": "5"}))
            else:
                raise
        except HTTPException as error:
            known = {"Allow": ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))}
            text = f"{exchange.method} is not for {exchange.path:.200}: it takes {known['Allow']}"
            await _refuse(exchange, ApiError(405, "method_not_allowed", text, headers=known))
        except Exception as error:
            await _refuse(exchange, failure(error, exchange))


async def _tell(send: Any, message: Any) -> None:
    """Tells the server how the lifespan goes on; without a traceback where a second signal cancelled it."""
    task = asyncio.current_task()
    if message["type"] == "lifespan.shutdown.failed" and task is not None and task.cancelling():
        message = {**message, "message": ""}
    await send(message)


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


async def _refuse(exchange: Exchange, error: ApiError) -> None:
    with contextlib.suppress(ClientGone):
        await exchange.refuse(error)


async def _unknown(scope: Any, receive: Any, send: Any) -> None:
    exchange: Exchange = scope["oxillama"]
    instead = INSTEAD.get(exchange.path)
    remedy = "" if instead is None else f": {instead}"
    raise ApiError(404, "unknown_url", f"there is no {exchange.path:.200}{remedy}")


def create_app(engines: Mapping[str, Any] | Any, config: ServerConfig | None = None) -> App:
    """The ASGI application that serves engines: one, or several by name, each an `Engine` or `AsyncEngine`.

    Engines that are given stay open when the application ends. Raises ConfigError for wrong settings and key files.
    """
    config = config or ServerConfig()
    return App(Service(served(engines, config), config))
