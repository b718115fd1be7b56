"""Spans of requests: what they say, whose children they are, and that they have no text."""

import asyncio
import importlib
import json
from types import SimpleNamespace

import pytest

from oxillama.cli import main
from oxillama.server import ServerConfig, create_app
from oxillama.server.errors import ApiError
from oxillama.server.tracing import Tracing
from tests.server.client import HI, Client

trace = pytest.importorskip("opentelemetry.trace")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorded:
    """A span that keeps what is said of it."""

    def __init__(self, name, context, kind):
        self.names, self.kind, self.ended, self.status = [name], kind, 0, None
        self.parent = trace.get_current_span(context).get_span_context()
        self.attributes = {}

    def update_name(self, name):
        self.names.append(name)

    def set_attributes(self, found):
        self.attributes |= found

    def set_attribute(self, name, value):
        self.attributes[name] = value

    def set_status(self, status):
        self.status = status

    def end(self):
        self.ended += 1


class Provider(trace.NoOpTracerProvider):
    def __init__(self):
        self.spans = []

    def get_tracer(self, *args, **options):
        return self

    def start_span(self, name, context=None, kind=None):
        self.spans.append(Recorded(name, context, kind))
        return self.spans[-1]


@pytest.fixture
def traced(engine):
    app = create_app({"tiny": engine}, ServerConfig(otel=True))
    provider = Provider()
    app.tracing = Tracing(provider)
    return Client(app), provider.spans


@pytest.mark.parametrize("stream", [False, True])
def test_a_span_says_what_a_model_did(traced, stream):
    client, spans = traced
    answer = client.post("/v1/chat/completions", {"messages": HI, "max_tokens": 5, "stream": stream},
                         {"traceparent": PARENT, "x-request-id": "r1"})  # fmt: skip
    assert answer.status == 200
    (span,) = spans
    assert (span.names[-1], span.kind, span.ended, span.status) == ("chat tiny", trace.SpanKind.SERVER, 1, None)
    assert f"{span.parent.trace_id:032x}" == PARENT.split("-")[1]
    known = dict(span.attributes)
    assert known.pop("gen_ai.server.time_to_first_token") > 0
    n = known.pop("gen_ai.usage.input_tokens")
    assert n == client.post("/tokenize", messages=HI).json["count"]
    assert known == {
        "http.request.method": "POST", "http.route": "/v1/chat/completions", "http.response.status_code": 200,
        "oxillama.request.id": "r1", "gen_ai.operation.name": "chat", "gen_ai.provider.name": "oxillama",
        "gen_ai.request.model": "tiny", "gen_ai.request.max_tokens": 5, "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }  # fmt: skip


def test_errors_are_in_their_spans(traced, monkeypatch):
    client, spans = traced
    assert client.post("/v1/embeddings", input=5).status == 400
    assert (spans[-1].attributes["http.response.status_code"], spans[-1].status) == (400, None)
    assert spans[-1].attributes["gen_ai.operation.name"] == "embeddings"
    client.app.service.draining = True
    assert client.post("/v1/completions", prompt="a").status == 503
    assert (spans[-1].attributes["error.type"], spans[-1].status) == ("draining", trace.StatusCode.ERROR)
    assert all(span.ended == 1 for span in spans)


def test_signs_of_life_have_none(traced):
    client, spans = traced
    for path in ("/health", "/ready", "/metrics"):
        client.get(path)
    assert spans == []


def test_serving_says_what_spans_need(monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("oxillama.server.tracing.importlib", type("Missing", (), {"import_module": missing}))
    assert main(["serve", "--otel", "--port", "0"]) == 2
    assert "otel needs opentelemetry-api" in capsys.readouterr().err
    assert importlib.import_module("oxillama.server.tracing") is not None


def test_names_are_those_of_routes_alone(traced):
    client, spans = traced
    assert client.get("/v1/made/up-4711").status == 404
    assert client.call("BREW", "/v1/models").status == 405
    assert client.get("/v1/models/nothing").status == 404
    assert [span.names[-1] for span in spans] == ["GET", "HTTP", "GET /v1/models/{id:path}"]
    assert [span.attributes.get("http.route") for span in spans] == [None, None, "/v1/models/{id:path}"]
    assert spans[1].attributes["http.request.method"] == "_OTHER"
    assert spans[1].attributes["http.request.method_original"] == "BREW"
    assert "4711" not in repr([(span.names, span.attributes) for span in spans])


def test_what_is_not_known_is_not_said(traced):
    client, spans = traced
    assert client.post("/v1/chat/completions", messages=5).status == 400
    assert spans[-1].names[-1] == "chat"
    assert "gen_ai.request.model" not in spans[-1].attributes
    assert "-" not in repr(spans[-1].attributes.get("gen_ai.response.finish_reasons"))


def test_streams_that_end_early_are_errors(traced, monkeypatch):
    client, spans = traced
    asked = json.dumps({"messages": HI, "max_tokens": 200, "stream": True}).encode()
    kind = {"content-type": "application/json"}
    asyncio.run(client.acall("POST", "/v1/chat/completions", asked, kind, leave_after=3))
    assert (spans[-1].attributes["error.type"], spans[-1].status) == ("client_gone", trace.StatusCode.ERROR)

    async def broken(run):
        raise ApiError(504, "timeout", "too long")

    monkeypatch.setattr("oxillama.server.generation.GenerationRun.next", broken)
    assert client.post("/v1/chat/completions", messages=HI, stream=True).status == 200
    assert (spans[-1].attributes["error.type"], spans[-1].status) == ("timeout", trace.StatusCode.ERROR)
    assert all(span.ended == 1 for span in spans)


def test_a_propagator_that_raises_ends_no_request(traced, caplog):
    client, spans = traced

    def raising(headers):
        raise RuntimeError("no context")

    client.app.tracing._propagate = SimpleNamespace(extract=raising)
    assert client.get("/v1/models").status == 200
    assert (spans, client.app.service.open, client.app.service.metrics.in_flight) == ([], set(), 0)
    assert "has no span" in caplog.text
