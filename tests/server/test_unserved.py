"""Paths without /v1, paths with a slash at their end, and those of llama-server or Ollama that are not served."""

import itertools

import pytest

from oxillama.server.routes import ROUTES
from oxillama.server.unserved import INSTEAD
from tests.server.client import HI

TEXT = {"max_tokens": 3, "temperature": 0}
SAME = {
    "/chat/completions": {"messages": HI, **TEXT},
    "/completions": {"prompt": "The", **TEXT},
    "/responses": {"input": "hi", "max_output_tokens": 3, "temperature": 0},
    "/embeddings": {"input": ["a", "b"]},
}
OWN = ("id", "created", "created_at", "completed_at", "model", "output")  # of each answer alone, or with an id within


@pytest.mark.parametrize("path", SAME)
def test_paths_without_a_version(client, path):
    found = [client.post(prefix + path, SAME[path]) for prefix in ("/v1", "")]
    assert [answer.status for answer in found] == [200, 200]
    one, other = ({k: v for k, v in answer.json.items() if k not in OWN} for answer in found)
    assert one == other
    wrong = client.post(path, {"model": 3})
    assert (wrong.status, wrong.error["param"]) == (400, "model")


@pytest.mark.parametrize("path", ["/models", "/v1/models/", "/models/"])
def test_lists_of_models(client, path):
    answer = client.get(path)
    assert (answer.status, answer.json) == (200, client.get("/v1/models").json)
    assert answer.json["object"] == "list"


def test_one_model(client):
    assert client.get("/models/tiny").json == client.get("/v1/models/tiny").json
    assert client.get("/models/other").status == 404


@pytest.mark.parametrize("path", INSTEAD)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_there_is_instead(client, path, method):
    answer = client.call(method, path, b"{}", {"content-type": "application/json"})
    assert answer.status == 404
    if not path.startswith("/api/"):  # whose errors are texts
        assert answer.error["code"] == "unknown_url"
    said = answer.error if path.startswith("/api/") else answer.error["message"]
    assert said == f"there is no {path}: {INSTEAD[path]}"


def test_the_sentences_name_what_is_served():
    served = {f"{e.method} {e.path}" for e in ROUTES}
    for sentence in INSTEAD.values():
        words = sentence.replace(",", " ").replace(":", " ").split()
        named = [f"{a} {b}" for a, b in itertools.pairwise(words) if a in ("GET", "POST")]
        assert [name for name in named if name not in served] == []


def test_other_paths(client):
    assert client.get("/other").error["message"] == "there is no /other"
