"""Spans of requests: what they say, whose children they are, and that they have no text."""

import importlib

import pytest

from oxillama.cli import main
from oxillama.server import ServerConfig, create_app
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
