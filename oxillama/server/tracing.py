"""Spans of requests for OpenTelemetry, named as its conventions for generative AI have it. Needs the extra `otel`.

Only its API is used: where spans go is set up round the server, as `opentelemetry-instrument` does it. They have no
text of prompts and answers.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from oxillama._util.version import __version__
from oxillama.errors import ConfigError
from oxillama.server.exchange import METHODS, Exchange
from oxillama.server.json_pieces import Body

__all__ = ["Tracing"]

log = logging.getLogger("oxillama")

# What the conventions call the operations of these paths.
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/api/chat": "chat",
    "/api/generate": "text_completion",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
}
FAULT = 500  # and above: the span is an error
GONE = 499  # of a client that left before its answer was whole
UNKNOWN = "-"  # in a record of usage: nothing is known
OTHER = "other"  # the route of an exchange that has none


class Tracing:
    """Begins and ends the span of each request; its parent is in the header `traceparent`."""

    def __init__(self, provider: Any = None) -> None:
        """provider: None for the one that OpenTelemetry is set up with. Raises ConfigError without OpenTelemetry."""
        try:
            self._trace = importlib.import_module("opentelemetry.trace")
            self._propagate = importlib.import_module("opentelemetry.propagate")
        except ImportError:
            raise ConfigError("otel needs opentelemetry-api: pip install '.[otel]' from a checkout") from None
        self._tracer = self._trace.get_tracer("oxillama.server", __version__, provider)

    def begin(self, exchange: Exchange) -> Any:
        """The span of a request, under its method until its route is known; None, and a line in the log, if the
        program's propagator or tracer raises something: no request fails for it."""
        try:
            parent = self._propagate.extract(exchange.headers)
            kind = self._trace.SpanKind.SERVER
            return self._tracer.start_span(method_of(exchange)[1], context=parent, kind=kind)
        except Exception:
            log.exception("the request %s has no span", exchange.id)
            return None

    def end(self, span: Any, exchange: Exchange, status: int) -> None:
        """Says what became of the request, and ends its span."""
        usage, operation = exchange.usage, _OPERATIONS.get("/v1" + exchange.route.removeprefix("/v1"))
        method, name = method_of(exchange)
        found = {"http.request.method": method, "oxillama.request.id": exchange.id}
        if method != exchange.method:
            found["http.request.method_original"] = f"{exchange.method:.32}"
        if exchange.status:
            found["http.response.status_code"] = exchange.status
        if exchange.route != OTHER:
            name += f" {exchange.route}"
            found["http.route"] = exchange.route
        span.update_name(name)
        span.set_attributes(found)
        if operation is not None:
            span.update_name(operation if usage.model == UNKNOWN else f"{operation} {usage.model}")
            span.set_attributes(generation(exchange) | {"gen_ai.operation.name": operation})
        reason = error_of(exchange, status)
        if reason is not None:
            span.set_attribute("error.type", reason)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()


def method_of(exchange: Exchange) -> tuple[str, str]:
    """The method as an attribute, and in a name: one that HTTP doesn't know is "_OTHER", and "HTTP"."""
    known = exchange.method in METHODS
    return (exchange.method, exchange.method) if known else ("_OTHER", "HTTP")


def error_of(exchange: Exchange, status: int) -> str | None:
    """Why a request failed: by the server's fault, as a stream that an error ended, or as its client left."""
    reason = exchange.usage.finish_reason
    if status == GONE:
        return "client_gone"
    if status >= FAULT:
        return str(status) if reason == UNKNOWN else reason
    return exchange.usage.failed


def generation(exchange: Exchange) -> Body:
    """Attributes of what a model did."""
    usage = exchange.usage
    found: Body = {
        "gen_ai.provider.name": "oxillama",
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }
    if usage.model != UNKNOWN:
        found["gen_ai.request.model"] = usage.model
    if usage.finish_reason != UNKNOWN:
        found["gen_ai.response.finish_reasons"] = [usage.finish_reason]
    if usage.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = usage.max_tokens
    if usage.first_token is not None:
        found["gen_ai.server.time_to_first_token"] = usage.first_token
    return found
