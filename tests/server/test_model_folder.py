"""Folder of models: what is served of it, what stays in memory, and what clients may change in it."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError
from oxillama.server import ServerConfig, create_app
from oxillama.server.folder_models import look_at_folder
from oxillama.server.model_folder import ModelFolder
from oxillama.server.models import served
from tests.hub import Hub, fail, put
from tests.server.client import HI, Client

MODEL = Path(shipped_model()).read_bytes()
ADMIN = "Bearer admin-key-12345"


def folder_of(places, *names):
    (places / "store").mkdir(exist_ok=True)
    for name in names:
        path = places / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shipped_model(), path)
    return str(places / "store")


def serving(models_dir, engines=None, **settings):
    config = ServerConfig(models_dir=models_dir, **settings)
    folder = ModelFolder(config, {"num_threads": 1})
    from oxillama.server.app import App
    from oxillama.server.service import Service

    return Client(App(Service(served(engines or {}, config, folder), config)))


@pytest.fixture
def admins(places):
    path = places / "admins"
    path.write_text("root:admin-key-12345\n")
    return str(path)


def state(client):
    return {one["id"]: one["oxillama"]["state"] for one in client.get("/v1/models").json["data"]}


def completed(client, model):
    return client.post("/v1/completions", model=model, prompt="Once", max_tokens=2)


def look(client):
    asyncio.run(look_at_folder(client.app.service.models))


def test_models_are_loaded_when_they_are_asked_for(places):
    client = serving(folder_of(places, "a-Q8_0.gguf", "sub/b.gguf", "mmproj-x.gguf", "notes.txt"))
    assert state(client) == {"a-Q8_0": "idle", "sub/b": "idle"}
    assert completed(client, "sub/b").status == 200
    assert state(client) == {"a-Q8_0": "idle", "sub/b": "ready"}
    for name in ("a-Q8_0", "a", "A:q8_0", "a-Q8_0.gguf"):
        assert completed(client, name).json["model"] == name
    assert client.post("/api/show", model="a:q8_0").status == 200
    assert client.get("/v1/models/sub/b").status == 200
    assert completed(client, "c").status == 404


def test_aliases_and_pins(places):
    client = serving(
        folder_of(places, "a.gguf", "b.gguf", "c.gguf"), alias=("gpt-4o=b", "fast=a"), keep_loaded=("c",), models_max=2,
        idle_unload=0.01,
    )  # fmt: skip
    models = client.app.service.models
    assert list(state(client)) == ["c", "a", "fast", "b", "gpt-4o"]
    asyncio.run(models.load_all())
    assert state(client)["c"] == "ready"
    assert completed(client, "gpt-4o").status == 200
    assert completed(client, "fast").status == 200
    assert state(client) == {"c": "ready", "a": "ready", "fast": "ready", "b": "idle", "gpt-4o": "idle"}
    client.post("/api/generate", model="c", keep_alive=0)
    client.post("/api/generate", model="a", keep_alive=0)

    async def wait():
        await asyncio.sleep(0.05)
        await models.unload_idle()

    asyncio.run(wait())
    assert state(client) == {"c": "ready", "a": "idle", "fast": "idle", "b": "idle", "gpt-4o": "idle"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alias": ("x",)}, "alias must be NAME=MODEL, not 'x'"),
        ({"alias": ("x=stories",)}, r"alias x=stories: 'stories' is no model of .*; the nearest: story"),
        ({"keep_loaded": ("none",)}, "keep_loaded 'none' is no model of"),
        (
            {"keep_loaded": ("story",), "models_max": 1},
            "models_max must be more than the 1 models of keep_loaded, not 1",
        ),
    ],
)
def test_settings_that_name_no_model(places, settings, message):
    with pytest.raises(ConfigError, match=message):
        serving(folder_of(places, "story.gguf"), **settings)


@pytest.mark.parametrize("name", ["alias", "keep_loaded", "allow_pull", "allow_delete"])
def test_settings_of_a_folder_without_one(name):
    value = True if name.startswith("allow") else ("a=b",)
    with pytest.raises(ConfigError, match=f"{name} is for the models of a folder: give models_dir, too"):
        ServerConfig(**{name: value})


def test_a_folder_that_is_not_there(places):
    with pytest.raises(ConfigError, match=r"models_dir .*/none: there is no such folder"):
        create_app({}, ServerConfig(models_dir=str(places / "none")))


def test_an_empty_folder_is_served_by_the_model_that_ships(places):
    client = serving("store")
    assert state(client) == {"oxillama-default": "idle"}
    folder_of(places, "a.gguf")
    look(client)
    assert state(client) == {"a": "idle"}
    assert completed(client, "").json["model"] == "a"
    (places / "store/a.gguf").unlink()
    look(client)
    assert state(client) == {"oxillama-default": "idle"}
    assert completed(client, "a").status == 404


def test_files_that_come_and_go(places, engine):
    client = serving(folder_of(places, "a.gguf"), {"own": engine})
    assert list(state(client)) == ["own", "a"]
    completed(client, "a")
    models = client.app.service.models
    before = models.all["a"]
    look(client)
    assert models.all["a"] is before
    folder_of(places, "b.gguf", "own.gguf")
    look(client)
    assert list(state(client)) == ["own", "a", "b"]  # a name that is given counts before that of a file
    assert models.all["own"].engine.engine is engine
    with InUse(before):
        (places / "store/a.gguf").unlink()
        look(client)
        assert "a" in state(client)
    look(client)
    assert list(state(client)) == ["own", "b"]
    assert before.engine is None


class InUse:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.model.n_open += 1

    def __exit__(self, *given):
        self.model.n_open -= 1


def test_a_model_that_can_not_be_loaded_ends_no_server(places):
    folder = folder_of(places)
    (places / "store/broken.gguf").write_bytes(b"GGUF junk")
    client = serving(folder)
    assert completed(client, "broken").status == 503
    assert state(client) == {"broken": "failed"}
    assert not client.app.service.models.all_failed
    folder_of(places, "broken.gguf")
    assert completed(client, "broken").status == 200


def test_a_folder_that_takes_long_is_looked_at_less_often(places, monkeypatch):
    folder = ModelFolder(ServerConfig(models_dir=folder_of(places, "a.gguf")))
    times = iter((100.0, 100.5, 100.6, 124.0, 126.0))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    folder.scan()
    assert [folder.is_due for _ in range(3)] == [False, False, True]


def test_a_folder_of_ollamas(places):
    blob = places / "ollama/blobs" / f"sha256-{'a' * 64}"
    manifest = places / "ollama/manifests/registry.ollama.ai/library/tiny/latest"
    for path in (blob, manifest):
        path.parent.mkdir(parents=True)
    shutil.copy(shipped_model(), blob)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    client = serving(str(places / "ollama"), allow_delete=True)
    assert state(client) == {"tiny:latest": "idle"}
    assert completed(client, "tiny").status == 200
    answer = client.call("DELETE", "/api/delete", b'{"model": "tiny"}')
    assert (answer.status, blob.exists(), manifest.exists()) == (403, True, True)


# ---- pull and delete


def hub_model(quant="Q8_0", data=MODEL):
    put(f"m-{quant}.gguf", data, repo="o/r-GGUF")


def test_nothing_is_fetched_or_deleted_unless_it_is_allowed(near_hub, admins):
    hub_model()
    folder = folder_of(near_hub, "a.gguf")
    for settings, headers in (({}, {}), ({"admin_key_file": admins}, {"authorization": ADMIN})):
        client = serving(folder, **settings)
        for method, path, flag in (("POST", "/api/pull", "--allow-pull"), ("DELETE", "/api/delete", "--allow-delete")):
            answer = client.call(method, path, json.dumps({"model": "hf.co/o/r-GGUF"}).encode(), headers)
            assert answer.status == 403
            assert f"start it with {flag}" in answer.error
    client = serving(folder, admin_key_file=admins, allow_pull=True, allow_delete=True)
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
        answer = client.call(method, path, json.dumps({"model": "a"}).encode())
        assert (answer.status, "the key of an administrator" in answer.error) == (403, True)
    assert Hub.requests == []
    assert os.path.exists(f"{folder}/a.gguf")


def test_a_pull_tells_how_far_it_is(near_hub):
    hub_model()
    fail("m-Q8_0.gguf", ("slow", 0.01), repo="o/r-GGUF")
    client = serving(folder_of(near_hub), allow_pull=True)
    lines = client.post("/api/pull", model="hf.co/o/r-GGUF").lines
    assert lines[0] == {"status": "pulling manifest"}
    assert [line["status"] for line in lines[-3:]] == ["verifying sha256 digest", "writing manifest", "success"]
    told = [line for line in lines if "digest" in line]
    assert {line["total"] for line in told} == {len(MODEL)}
    assert told[-1]["completed"] == len(MODEL)
    assert all(
        line["digest"].startswith("sha256:") and line["status"] == f"pulling {line['digest'][7:19]}" for line in told
    )
    assert state(client) == {"o/r-GGUF:Q8_0": "idle"}
    for name in ("hf.co/o/r-GGUF", "hf.co/o/r-GGUF:Q8_0", "o/r-GGUF:latest", "r:q8_0"):
        answer = client.post("/api/generate", model=name, prompt="Once", stream=False, options={"num_predict": 2})
        assert answer.status == 200, name
    assert [one["name"] for one in client.get("/api/tags").json["models"]] == ["o/r-GGUF:Q8_0"]


def test_a_pull_in_one_answer(near_hub):
    hub_model()
    client = serving(folder_of(near_hub), allow_pull=True)
    assert client.post("/api/pull", name="hf.co/o/r-GGUF:Q8_0", stream=False).json == {"status": "success"}
    assert client.post("/api/pull", model="hf:o/r-GGUF:Q4_0", stream=False).status == 404


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("", 400, "model is required"),
        ("https://evil.example/o/r", 400, "an address of the Hugging Face Hub"),
        ("hf:../../etc/passwd", 400, "repo_id must be"),
        ("o/r/../../x.gguf", 404, "not found"),
        ("/etc/passwd", 404, "not found"),
        ("~/x", 404, "not found"),
        ("a\0b", 404, "not found"),
        ("nothing", 404, "models are those of the Hugging Face Hub"),
        ("hf.co/o/none", 404, "no such repository"),
        ("x" * 5000, 400, "model"),
    ],
)
def test_names_that_can_not_be_pulled(near_hub, model, status, message):
    client = serving(folder_of(near_hub), allow_pull=True)
    answer = client.post("/api/pull", model=model, stream=False)
    assert (answer.status, message in answer.error) == (status, True), answer.body
    assert str(near_hub) not in answer.error
    assert os.listdir(near_hub / "store") in ([], [".fetched"])


def test_an_error_in_the_middle_is_a_line(near_hub, monkeypatch):
    hub_model()
    fail("m-Q8_0.gguf", ("wrong",), repo="o/r-GGUF")
    client = serving(folder_of(near_hub), allow_pull=True)
    answer = client.post("/api/pull", model="hf.co/o/r-GGUF")
    assert answer.status == 200
    assert "is not what the Hub says that it is" in answer.lines[-1]["error"]
    assert str(near_hub) not in answer.body.decode()
    assert state(client) == {"oxillama-default": "idle"}


def test_no_room_tells_no_folder(near_hub, monkeypatch):
    put("m-Q8_0.gguf", 60 << 30, repo="o/huge")
    usage = shutil.disk_usage(near_hub)
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage._replace(free=1 << 30))
    answer = serving(folder_of(near_hub), allow_pull=True).post("/api/pull", model="hf.co/o/huge", stream=False)
    assert (answer.status, "needs 60.0 GiB more" in answer.error) == (502, True)
    assert str(near_hub) not in answer.error


def test_deleting_what_was_pulled_alone(near_hub):
    hub_model()
    folder = folder_of(near_hub, "mine.gguf")
    client = serving(folder, allow_pull=True, allow_delete=True, alias=("other=mine",))
    client.post("/api/pull", model="hf.co/o/r-GGUF", stream=False)

    def deleted(name):
        answer = client.call("DELETE", "/api/delete", json.dumps({"model": name}).encode())
        return answer.status, answer.error if answer.body else ""

    assert deleted("mine") == (403, "mine was put into the folder by hand, and stays")
    assert deleted("other")[0] == 403
    assert deleted("../mine")[0] == deleted("/etc/passwd")[0] == deleted("nothing")[0] == 404
    assert deleted("") == (400, "model is required")
    model = client.app.service.models.all["o/r-GGUF:Q8_0"]
    completed(client, model.id)
    with InUse(model):
        assert deleted("hf.co/o/r-GGUF:Q8_0") == (409, "o/r-GGUF:Q8_0 is in use")
    assert deleted("hf.co/o/r-GGUF:Q8_0") == (200, "")
    assert list(state(client)) == ["mine", "other"]
    assert os.listdir(near_hub / "store") == [".fetched", "mine.gguf"] or "mine.gguf" in os.listdir(near_hub / "store")
    assert not list((near_hub / "hub").rglob("*.gguf"))


def test_models_that_are_given_or_pinned_stay(near_hub, engine):
    hub_model()
    from oxillama.store.names import read_hub_name
    from oxillama.store.pull import pull
    from oxillama.store.store import Store

    pull(read_hub_name("hf:o/r-GGUF"), Store())
    client = serving("store", {"own": engine}, allow_delete=True, keep_loaded=("r",))
    for name, status in (("own", 403), ("r", 409)):
        assert client.call("DELETE", "/api/delete", json.dumps({"model": name}).encode()).status == status
    assert client.call("POST", "/admin/models/unload", b"{}").status == 403


@pytest.mark.parametrize("name", ["hf:o/r-GGUF", "hf.co/o/r-GGUF:Q8_0", "https://huggingface.co/o/r-GGUF", "~/home",
                                  "../store/a.gguf", "/etc/passwd", "o/r-GGUF:Q8_0"])  # fmt: skip
def test_no_name_of_a_request_is_fetched_or_opened(near_hub, name):
    hub_model()
    client = serving(folder_of(near_hub, "a.gguf"), allow_pull=True)
    shutil.copy(shipped_model(), near_hub / "home")
    for path, body in (
        ("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": HI}),
        ("/v1/embeddings", {"input": "x"}), ("/tokenize", {"prompt": "x"}), ("/api/generate", {"prompt": "x"}),
        ("/api/show", {}), ("/api/embed", {"input": "x"}), ("/v1/messages/count_tokens", {"messages": []}),
    ):  # fmt: skip
        assert client.post(path, model=name, **body).status in (400, 404), path
    assert Hub.requests == []


def test_ollamas_own_client_pulls_and_deletes(near_hub):
    ollama = pytest.importorskip("ollama")
    from tests.server.client import serving as on_a_socket

    hub_model()
    folder = folder_of(near_hub)
    with on_a_socket({}, models_dir=folder, allow_pull=True, allow_delete=True) as (_, port):
        client = ollama.Client(f"http://127.0.0.1:{port}")
        steps = list(client.pull("hf.co/o/r-GGUF", stream=True))
        assert (steps[0].status, steps[-1].status) == ("pulling manifest", "success")
        assert {step.total for step in steps if step.digest} == {len(MODEL)}
        assert client.pull("hf.co/o/r-GGUF").status == "success"
        assert [one.model for one in client.list().models] == ["o/r-GGUF:Q8_0"]
        assert client.generate("hf.co/o/r-GGUF", "Once", options={"num_predict": 2}).done
        assert client.delete("hf.co/o/r-GGUF").status == "success"
        with pytest.raises(ollama.ResponseError):
            client.generate("hf.co/o/r-GGUF", "Once")
        client._client.close()


def test_a_client_that_leaves_stops_a_pull(near_hub):
    hub_model()
    from oxillama.server.routes.ollama_pull import Progress, Stopped

    progress = Progress()
    progress.stopped.set()
    with pytest.raises(Stopped):
        progress.report("m", 1, 2)


def test_only_so_many_at_a_time(near_hub):
    hub_model()
    client = serving(folder_of(near_hub), allow_pull=True)
    client.app.service.pulls.update((1, 2))
    answer = client.post("/api/pull", model="hf.co/o/r-GGUF", stream=False)
    assert (answer.status, answer.headers["retry-after"]) == (503, "30")
    client.app.service.pulls.clear()
    assert client.post("/api/pull", model="hf.co/o/r-GGUF", stream=False).status == 200
    assert client.app.service.pulls == set()
