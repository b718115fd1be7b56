"""Paths of the application."""

import pytest

from oxillama.server import ServerConfig, create_app
from oxillama.server.routes import ROUTES
from tests.server.client import HI, Client


@pytest.mark.parametrize("endpoint", [one for one in ROUTES if "{" not in one.path], ids=lambda one: one.path)
def test_a_slash_at_the_end_of_a_path_means_nothing(client, endpoint):
    """As clients have it that join addresses."""
    headers = {"content-type": "application/json", "x-request-id": "one"}
    plain = client.call(endpoint.method, endpoint.path, b"", headers)
    slash = client.call(endpoint.method, endpoint.path + "/", b"", headers)
    assert (slash.status, slash.headers["content-type"]) == (plain.status, plain.headers["content-type"])
    if plain.status >= 400:
        assert slash.json == plain.json


def test_models_and_answers_behind_a_slash(client):
    assert client.get("/v1/models/").json == client.get("/v1/models").json
    assert client.get("/models/").json["object"] == "list"
    assert client.get("/v1/models/tiny/").json["id"] == "tiny"
    answer = client.post("/v1/chat/completions/", messages=HI, max_tokens=2, seed=1)
    assert answer.json["usage"]["completion_tokens"] == 2
    assert client.get("/v1/models?x=1").status == client.get("/v1/models/?x=1").status == 200


def test_a_slash_opens_no_path(configured, tmp_path):
    admins = tmp_path / "admins"
    admins.write_text("root:another-secret\n")
    locked = configured(api_key="a-long-secret", admin_key_file=str(admins))
    for path in ("/v1/models/", "/metrics/", "/version/", "/admin/requests/", "/v1/models//", "//", "//v1/models"):
        assert locked.get(path).status in (401, 404), path
        assert locked.get(path).status == 401 or not path.strip("/").startswith(("v1", "metrics", "version", "admin"))
    known = {"x-api-key": "a-long-secret"}
    assert locked.call("GET", "/admin/requests/", b"", known).status == 403
    assert locked.call("POST", "/v1/load_lora_adapter/", b"{}", known).status == 403
    assert locked.get("/health/").status == 200


def test_two_slashes_are_another_path(client):
    assert client.get("/version//").status == 404
    assert client.post("/v1/chat/completions//", messages=HI).status == 404


def test_a_mounted_application_knows_its_paths_behind_a_slash(engine):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = create_app({"tiny": engine}, ServerConfig())
    client = Client(Starlette(routes=[Mount("/models", app=inner)]))
    assert client.get("/models/v1/models/").json["object"] == "list"
    assert client.get("/models/").status == 200
