"""Replica: an engine with the server's application, as an actor of Ray Serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from oxillama.config import EngineConfig, field_names
from oxillama.engine.engine import Engine
from oxillama.ray.prefix import ForwardedRequest
from oxillama.server import ServerConfig, create_app

__all__ = ["Replica"]


class Replica:
    """One engine, and the application that answers for it.

    name: the model's name for clients; empty: as its file says.
    """

    def __init__(self, config: EngineConfig, server: ServerConfig, name: str) -> None:
        options = {field: getattr(config, field) for field in field_names(EngineConfig) if field != "model_path"}
        self.engine = Engine.load(config.model_path, **options)
        self.app = create_app({name: self.engine}, server)

    async def answer(self, request: ForwardedRequest) -> AsyncIterator[list[dict[str, Any]]]:
        """Messages of ASGI, as many together as there are; the first list is empty and says that the request is here.

        A caller that leaves ends its request.
        """
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        gone = asyncio.Event()
        running = asyncio.ensure_future(self._run(request, messages, gone))
        try:
            yield []
            together: list[dict[str, Any] | None] = []
            while not together or together[-1] is not None:  # which comes last
                together = [await messages.get()]
                while not messages.empty():
                    together.append(messages.get_nowait())
                if found := [message for message in together if message is not None]:
                    yield found
            await running
        finally:
            gone.set()
            if not running.done():
                await asyncio.wait([running])

    async def _run(self, request: ForwardedRequest, messages: asyncio.Queue[Any], gone: asyncio.Event) -> None:
        body = [request.body]

        async def receive() -> dict[str, Any]:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            messages.put_nowait(message)

        try:
            await self.app(dict(request.scope), receive, send)
        finally:
            messages.put_nowait(None)

    async def check_health(self) -> None:
        """Raises RuntimeError unless `/ready` would say 200, after which Ray Serve starts another replica."""
        status = self.app.service.status
        if status != "ok":
            raise RuntimeError(f"the server of {next(iter(self.app.service.models.all))} is {status}")
