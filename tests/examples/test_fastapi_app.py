"""The FastAPI application: answers that fit the model of the endpoint, refusals with a status, and a stream."""

import pytest

import oxillama as ox

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient

from oxillama.examples.fastapi_app import Verdict, app


@pytest.fixture(scope="module")
def client():
    with TestClient(app) as client:
        yield client


def test_a_verdict_fits_its_model(client):
    answer = client.post("/verdict", json={"text": "A fine lamp."})
    assert answer.status_code == 200
    assert Verdict.model_validate(answer.json(), strict=True)
    assert client.post("/verdict", json={"text": "A fine lamp."}).json() == answer.json()


@pytest.mark.parametrize("body", [{}, {"text": 3}, {"text": "x" * 4001}])
def test_what_is_no_review_is_refused(client, body):
    assert client.post("/verdict", json=body).status_code == 422


def test_a_review_that_is_longer_than_the_context_is_refused(client):
    assert client.post("/verdict", json={"text": "a b c " * 660}).status_code == 413


def test_a_full_queue_says_so(client, monkeypatch):
    async def full(*args, **options):
        raise ox.QueueFullError("64 requests wait")

    monkeypatch.setattr(app.state.engine, "chat", full)
    answer = client.post("/verdict", json={"text": "A lamp."})
    assert (answer.status_code, answer.json()["detail"]) == (429, "64 requests wait")


def test_a_stream_has_the_text_of_the_engine(client):
    with client.stream("POST", "/story", json={"text": "Once upon a time"}) as answer:
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        pieces = list(answer.iter_text())
    with ox.load() as engine:
        wanted = engine.generate("Once upon a time", max_tokens=200, temperature=0.8, seed=1).text
    assert "".join(pieces) == wanted
    assert len(pieces) > 5
