"""States of models: what `/ready`, `/health`, lists, metrics and requests say of each, and that all of them agree."""

import asyncio
import errno
import shutil

import pytest

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.server import ServerConfig, create_app
from oxillama.server.model_files import CHANGED
from oxillama.server.models import ServedModel
from tests.server.client import Client

SECRET = "/srv/secret-folder/model.gguf"
ASK = {"prompt": "Once", "max_tokens": 2, "temperature": 0}
SHORT = "the server is short of memory, of threads or of open files"
FAULTS = [
    (ox.ModelNotFoundError(f"{SECRET}: no such file"), "its file isn't there, or can't be read"),
    (ox.GGUFError(f"{SECRET}: cut"), "its file is damaged, or lacks a part"),
    (ox.UnsupportedModelError(f"{SECRET}: of a kind"), "it is of a kind that isn't supported"),
    (ox.LoraError(f"{SECRET}: of another"), "an adapter doesn't fit it"),
    (ox.PackedFileError(f"{SECRET}: of another"), "its packed weights can't be used"),
    (ox.ConfigError(f"{SECRET}: wrong"), "a setting or its draft doesn't fit it"),
    (PermissionError(errno.EACCES, "Permission denied", SECRET), "one of its files can't be read"),
    (MemoryError(), SHORT),
    (RuntimeError(f"{SECRET}: a fault of the server"), "the log says why"),
    (ZeroDivisionError(SECRET), "the log says why"),
]


def client_of(*models, **settings):
    return Client(create_app({model.id: model for model in models}, ServerConfig(**settings)))


def raising(error):
    def load():
        raise error

    return load


def states_in_metrics(client):
    lines = client.get("/metrics").body.decode().splitlines()
    pairs = [line.split() for line in lines if line.startswith("oxillama_model_state{")]
    return dict(pairs)


def told(client):
    """What a client can learn of the models, all of it equal; without a path in any answer."""
    ready, health, listed = (client.get(path) for path in ("/ready", "/health", "/v1/models"))
    for answer in (ready, health, listed, client.get("/metrics"), client.get("/api/tags"), client.get("/api/ps")):
        assert b"secret-folder" not in answer.body
    states = {one["id"]: one["oxillama"]["state"] for one in listed.json["data"]}
    assert ready.json["models"] == states
    assert ready.json.get("reasons", {}) == {
        one["id"]: one["oxillama"]["reason"] for one in listed.json["data"] if one["oxillama"]["state"] == "failed"
    }
    assert health.json["status"] == ready.json["status"]
    assert (ready.status == 200) == (ready.json["status"] == "ok")
    for name, state in states.items():
        assert client.get(f"/v1/models/{name}").json["oxillama"]["state"] == state
        assert {
            labels for labels, value in states_in_metrics(client).items() if value == "1" and f'"{name}"' in labels
        } == {f'oxillama_model_state{{model="{name}",state="{state}"}}'}
    return ready.status, ready.json["status"], states, ready.json.get("reasons", {})


def load(client):
    asyncio.run(client.app.service.models.load_all())


@pytest.mark.parametrize(("error", "reason"), FAULTS)
def test_a_model_that_cant_be_loaded_at_start_has_failed_for_a_reason(error, reason, engine, caplog):
    client = client_of(ServedModel("bad", load=raising(error)), ServedModel("good", load=ox.load))
    assert told(client) == (503, "loading", {"bad": "idle", "good": "idle"}, {})
    load(client)
    assert told(client) == (503, "failed", {"bad": "failed", "good": "ready"}, {"bad": reason})
    assert client.get("/health").status == 200  # the process lives, and a start would change nothing
    answer = client.post("/v1/completions", ASK | {"model": "bad"})
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "engine_failed", "60")
    assert answer.error["message"] == f"the model bad can't be loaded: {reason}"
    assert client.post("/v1/completions", ASK | {"model": "good"}).status == 200
    assert (str(error) or "MemoryError") in caplog.text  # administrators learn all of it
    asyncio.run(client.app.service.models.close())


@pytest.mark.parametrize(("error", "reason"), FAULTS)
def test_a_model_that_loads_on_demand_leaves_the_others_ready(error, reason):
    client = client_of(ServedModel("good", load=ox.load), ServedModel("bad", load=raising(error), at_start=False))
    load(client)
    assert told(client) == (200, "ok", {"good": "ready", "bad": "idle"}, {})
    answer = client.post("/v1/completions", ASK | {"model": "bad"})
    passes = reason == SHORT
    code = "loading" if passes else "engine_failed"
    assert (answer.status, answer.error["code"], "secret" in answer.body.decode()) == (503, code, False)
    state = ("idle", {}) if passes else ("failed", {"bad": reason})
    assert told(client) == (200, "ok", {"good": "ready", "bad": state[0]}, state[1])
    asyncio.run(client.app.service.models.close())


def test_a_model_at_start_whose_file_was_repaired_gets_requests_again(tmp_path):
    """It is loaded by the next one, which a balancer sends to no server that isn't ready."""
    place = tmp_path / "model.gguf"
    place.write_bytes(b"no model")
    model = ServedModel("m", load=lambda: ox.load(place, num_threads=1), path=str(place))
    client = client_of(model, ServedModel("other", load=ox.load), idle_unload=60.0)
    load(client)
    assert told(client)[1] == "failed"
    shutil.copy(shipped_model(), place)
    client.app.service.models.look_at_files()
    assert told(client) == (200, "ok", {"m": "idle", "other": "ready"}, {})
    assert client.post("/v1/completions", ASK | {"model": "m"}).status == 200
    assert told(client) == (200, "ok", {"m": "ready", "other": "ready"}, {})
    asyncio.run(client.app.service.models.close())


def test_a_model_that_was_lost_says_so(tmp_path):
    place = shutil.copy(shipped_model(), tmp_path / "secret-folder.gguf")
    model = ServedModel("m", load=lambda: ox.load(place, num_threads=1, repack=False), path=str(place))
    client = client_of(model, ServedModel("other", load=ox.load))
    load(client)
    with open(place, "r+b") as file:
        file.truncate(1000)

    async def look():
        client.app.service.models.look_at_files()
        await asyncio.gather(*client.app.service.models._leaving)

    asyncio.run(look())
    assert told(client) == (503, "failed", {"m": "failed", "other": "ready"}, {"m": CHANGED})
    message = client.post("/v1/completions", ASK | {"model": "m"}).error["message"]
    assert message == f"the model m can't be used: {CHANGED}"
    asyncio.run(client.app.service.models.close())


def test_an_end_counts_for_more_than_what_failed():
    client = client_of(ServedModel("bad", load=raising(MemoryError())))
    load(client)
    client.app.service.draining = True
    assert client.get("/ready").json == {"status": "draining", "models": {"bad": "failed"}, "reasons": {"bad": SHORT}}
    assert (client.get("/health").status, client.get("/health").json) == (503, {"status": "draining"})
