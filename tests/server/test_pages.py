"""Pages: one to try a model, and the description of the API."""

import base64
import hashlib
import re

import pytest


def test_the_page_runs_its_own_script_alone(client):
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    body = answer.body.decode()
    script = re.search(r"<script>(.*?)</script>", body, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert re.findall(r"(?:src|href)=|https?://|innerHTML|eval\(", body) == []


def test_the_description_and_the_manual(client):
    assert client.get("/openapi.json").json["openapi"] == "3.1.0"
    body = client.get("/docs").body.decode()
    assert "/v1/chat/completions" in body
    assert "<script" not in body


def test_pages_need_no_key_and_can_be_left_out(configured):
    keyed = configured(api_key="a-long-secret")
    assert [keyed.get(path).status for path in ("/", "/openapi.json", "/docs")] == [200, 200, 200]
    bare = configured(ui=False, docs=False)
    assert [bare.get(path).status for path in ("/", "/openapi.json", "/docs")] == [404, 404, 404]
    assert bare.get("/", origin="http://localhost").status == 404


BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.mark.parametrize(("settings", "accept", "kind"), [
    ({}, BROWSER, "text/html"), ({}, "*/*", "text/html"), ({}, "application/json", "text/plain"),
    ({"ollama": True}, BROWSER, "text/html"), ({"ollama": True}, "*/*", "text/plain"),
    ({"ollama": True}, "application/json", "text/plain"), ({"ui": False}, "*/*", "application/json"),
    ({"ui": False}, "application/json", "text/plain"), ({"ui": False, "ollama": True}, BROWSER, "text/plain"),
])  # fmt: skip
def test_the_root_tells_clients_of_ollama_that_it_runs(configured, settings, accept, kind):
    client = configured(**settings)
    for method in ("GET", "HEAD"):
        answer = client.call(method, "/", headers={"accept": accept})
        assert answer.headers["content-type"].startswith(kind)
        assert answer.status == (404 if kind == "application/json" else 200)
        if kind == "text/plain":
            assert answer.body == (b"Ollama is running" if method == "GET" else b"")


def test_clients_without_an_accept_header(configured):
    assert configured(ollama=True).get("/").body == b"Ollama is running"
