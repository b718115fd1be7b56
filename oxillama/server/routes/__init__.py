"""Routes of the server: method, path, handler, and what the manual says of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from oxillama.server.exchange import Exchange
from oxillama.server.fields import CHAT, COMPLETIONS
from oxillama.server.kinds import Record
from oxillama.server.routes.chat import chat_completions
from oxillama.server.routes.completions import completions
from oxillama.server.routes.health import health, metrics, model, models, ready, version

__all__ = ["ROUTES", "Endpoint"]


@dataclass(frozen=True)
class Endpoint:
    """A route. record: the fields of its body; None without one."""

    method: str
    path: str
    handler: Callable[[Exchange], Awaitable[None]]
    text: str
    record: Record | None = None


ROUTES = (
    Endpoint("POST", "/v1/chat/completions", chat_completions, "an answer to a conversation (OpenAI)", CHAT),
    Endpoint("POST", "/v1/completions", completions, "the continuation of a text, and scores (OpenAI)", COMPLETIONS),
    Endpoint("GET", "/v1/models", models, "models and adapters, with what they can do"),
    Endpoint("GET", "/v1/models/{id:path}", model, "one of them"),
    Endpoint("GET", "/health", health, "200 as soon as the process answers, 503 while it ends"),
    Endpoint("GET", "/v1/health", health, "the same"),
    Endpoint("GET", "/ready", ready, "200 when the models that are loaded at start are"),
    Endpoint("GET", "/version", version, "version, CPU tier, threads"),
    Endpoint("GET", "/metrics", metrics, "Prometheus, or OpenMetrics by Accept"),
)
