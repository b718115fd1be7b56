"""Spans of requests for OpenTelemetry, named as its conventions for generative AI have it. Needs the extra `otel`.

Only its API is used: where spans go is set up round the server, as `opentelemetry-instrument` does it. They have no
text of prompts and answers.
"""

from __future__ import annotations

import importlib
from typing import Any

from oxillama.errors import ConfigError
from oxillama.server.exchange import Exchange
from oxillama.server.version import VERSION

__all__ = ["Tracing"]

# What the conventions call the operations of these paths.
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
FAULT = 500  # and above: the span is an error


class Tracing:
    """Begins and ends the span of each request; its parent is in the header `traceparent`."""

    def __init__(self, provider: Any = None) -> None:
        """provider: None for the one that OpenTelemetry is set up with. Raises ConfigError without OpenTelemetry."""
        try:
            self._trace = importlib.import_module("opentelemetry.trace")
            self._propagate = importlib.import_module("opentelemetry.propagate")
        except ImportError:
            raise ConfigError("otel needs opentelemetry-api: pip install '.[otel]' from a checkout") from None
        self._tracer = self._trace.get_tracer("oxillama.server", VERSION, provider)

    def begin(self, exchange: Exchange) -> Any:
        """The span of a request, under the method and path until more is known."""
        parent = self._propagate.extract(exchange.headers)
        kind = self._trace.SpanKind.SERVER
        return self._tracer.start_span(f"{exchange.method} {exchange.path:.200}", context=parent, kind=kind)

    def end(self, span: Any, exchange: Exchange, status: int) -> None:
        """Says what became of the request, and ends its span."""
        tally, operation = exchange.tally, _OPERATIONS.get(exchange.route)
        span.update_name(f"{exchange.method} {exchange.route}")
        span.set_attributes({
            "http.request.method": exchange.method,
            "http.route": exchange.route,
            "http.response.status_code": status,
            "oxillama.request.id": exchange.id,
        })  # fmt: skip
        if operation is not None:
            span.update_name(f"{operation} {tally.model}")
            span.set_attributes(generation(exchange) | {"gen_ai.operation.name": operation})
        if status >= FAULT:
            span.set_attribute("error.type", tally.finish_reason)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()


def generation(exchange: Exchange) -> dict[str, Any]:
    """Attributes of what a model did."""
    tally = exchange.tally
    found: dict[str, Any] = {
        "gen_ai.provider.name": "oxillama",
        "gen_ai.request.model": tally.model,
        "gen_ai.usage.input_tokens": tally.prompt_tokens,
        "gen_ai.usage.output_tokens": tally.completion_tokens,
        "gen_ai.response.finish_reasons": [tally.finish_reason],
    }
    if tally.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = tally.max_tokens
    if tally.first_token is not None:
        found["gen_ai.server.time_to_first_token"] = tally.first_token
    return found
