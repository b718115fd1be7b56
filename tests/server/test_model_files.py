"""Files of models that are cut or written under a running server, and what clients learn of the server's files."""

import asyncio
import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

import oxillama as ox
from oxillama.core.loading import shipped_draft, shipped_model
from oxillama.server import ServerConfig, create_app
from oxillama.server.errors import ApiError
from oxillama.server.model_files import without_paths
from oxillama.server.models import ServedModel
from tests.server.client import Client

ADMIN = {"x-api-key": "admin-secret"}
ASK = {"prompt": "Once", "max_tokens": 2, "temperature": 0}


@pytest.fixture
def file(tmp_path):
    return shutil.copy(shipped_model(), tmp_path / "secret-folder.gguf")


@pytest.fixture
def admins(tmp_path):
    place = tmp_path / "admins"
    place.write_text("root:admin-secret\n")
    return str(place)


def loading(path, **options):
    """Of which the weights stay in the file, so that a change of it counts."""
    return lambda: ox.load(path, num_threads=1, repack=False, **options)


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def write(path):
    with open(path, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"\x01")


def served(model, **settings):
    return Client(create_app({model.id: model}, ServerConfig(**settings)))


def loaded(path, **fields):
    return ServedModel("m", load=loading(path), path=str(path), **fields)


@pytest.mark.parametrize("change", [cut, write])
def test_a_model_whose_file_changes_is_not_ready_and_one_line_says_so(file, change, caplog):
    model = loaded(file)
    client = served(model)
    assert client.get("/ready").status == 503
    asyncio.run(client.app.service.models.load(model))
    assert (client.get("/ready").status, client.post("/v1/completions", ASK).status) == (200, 200)
    change(file)
    answers = [client.post("/v1/completions", ASK) for _ in range(3)]
    assert [(answer.status, answer.error["code"]) for answer in answers] == [(503, "engine_failed")] * 3
    ready = client.get("/ready")
    assert (ready.status, ready.json["models"]) == (503, {"m": "failed"})
    assert not any(
        "secret-folder" in answer.body.decode() or os.path.dirname(file) in answer.body.decode() for answer in answers
    )
    assert [r.levelname for r in caplog.records if "can't be used any more" in r.message] == ["ERROR"]
    assert not client.app.service.models.all_failed  # the process stays


def test_what_loads_on_demand_is_loaded_anew_from_the_new_file(file, tmp_path, caplog):
    client = served(loaded(file, at_start=False))
    before = client.post("/v1/completions", ASK).json["choices"][0]["text"]
    cut(file)
    assert client.post("/v1/completions", ASK).status == 503
    assert (client.get("/ready").status, client.get("/ready").json["models"]) == (200, {"m": "idle"})
    answer = client.post("/v1/completions", ASK)  # half a file can't be loaded
    assert (answer.status, answer.error["code"]) == (503, "engine_failed")
    assert (client.get("/ready").status, client.get("/ready").json["models"]) == (503, {"m": "failed"})
    assert client.post("/v1/completions", ASK).status == 503
    shutil.copy(shipped_model(), file)
    client.app.service.models.look_at_files()  # as it does each second: a balancer may send no request to it
    assert (client.get("/ready").status, client.get("/ready").json["models"]) == (200, {"m": "idle"})
    assert client.post("/v1/completions", ASK).json["choices"][0]["text"] == before
    assert client.get("/ready").json["models"] == {"m": "ready"}
    assert "the next request loads it again" in caplog.text


@pytest.mark.parametrize("other", ["draft", "packed", "part"])
def test_another_file_than_the_model_that_is_repaired(file, other, tmp_path):
    place = tmp_path / "other"
    good = Path(shipped_draft()).read_bytes() if other == "draft" else b"good"
    place.write_bytes(good)

    def load():
        if other != "draft" and place.read_bytes() != good:
            raise ox.PackedFileError(f"{place}: cut")
        return ox.load(file, num_threads=1)

    draft = {"load_draft": lambda: ox.DraftModel(place, num_threads=1)} if other == "draft" else {}
    client = served(ServedModel("m", load=load, path=str(file), files=(str(place),), at_start=False, **draft))
    place.write_bytes(good[: len(good) // 2])
    assert [client.post("/v1/completions", ASK).status for _ in range(2)] == [503, 503]
    assert client.get("/ready").json["models"] == {"m": "failed"}
    place.write_bytes(good)
    assert client.post("/v1/completions", ASK).status == 200


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.EMFILE, "Too many open files"), ox.ModelNotFoundError("can't be read")]
)
def test_a_shortage_that_passes_is_no_end(file, error, caplog):
    if isinstance(error, ox.OxiLlamaError):
        error.__cause__ = OSError(errno.ENFILE, "Too many open files in system")
    faults = [error] * 5

    def load():
        if faults:
            raise faults.pop()
        return ox.load(file, num_threads=1)

    client = served(ServedModel("m", load=load, path=str(file), at_start=False))
    answers = [client.post("/v1/completions", ASK) for _ in range(5)]
    assert {(one.status, one.error["code"], one.headers["retry-after"]) for one in answers} == {(503, "loading", "5")}
    assert client.post("/v1/completions", ASK).status == 200
    assert sum("the next request tries again" in one.message for one in caplog.records) == 1


def test_a_server_sees_a_change_without_a_request(file):
    model = loaded(file)
    client = served(model)
    asyncio.run(client.app.service.models.load(model))
    client.app.service.models.look_at_files()
    assert client.get("/ready").status == 200

    async def look():
        client.app.service.models.look_at_files()
        await asyncio.gather(*client.app.service.models._leaving)

    cut(file)
    asyncio.run(look())
    assert (client.get("/ready").status, model.engine, model.state) == (503, None, "failed")


def test_administrators_load_it_again(file, admins):
    model = loaded(file)
    client = served(model, admin_key_file=admins)
    asyncio.run(client.app.service.models.load(model))
    write(file)
    assert client.post("/v1/completions", ASK, ADMIN).status == 503
    shutil.copy(shipped_model(), file)
    assert client.post("/v1/completions", ASK, ADMIN).status == 503
    assert client.post("/admin/models/load", {"model": "m"}, ADMIN).json == {"model": "m", "state": "ready"}
    assert (client.post("/v1/completions", ASK, ADMIN).status, client.get("/ready").status) == (200, 200)


def test_a_stream_that_is_cut_ends_in_an_error_without_a_path(file):
    model = loaded(file)
    client = served(model)
    asyncio.run(client.app.service.models.load(model))
    cut(file)
    text = client.post("/v1/completions", ASK | {"stream": True}).body.decode()
    assert ("engine_failed" in text, "secret-folder" in text, client.get("/ready").status) == (True, False, 503)


PATHS = ["chat/completions", "completions", "responses", "messages", "embeddings"]
PATHS = [*(f"/v1/{name}" for name in PATHS), "/api/chat", "/api/generate", "/api/embed"]


@pytest.mark.parametrize("path", PATHS)
def test_no_dialect_tells_the_path(file, path):
    client = served(loaded(file, at_start=False))
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    if "embed" in path:
        body = {"input": "hi"}
    elif path == "/v1/responses":
        body = {"input": "hi", "max_output_tokens": 16}
    elif path in ("/api/generate", "/v1/completions"):
        body = {"prompt": "hi", "stream": False}
    elif path == "/api/chat":
        body = {"messages": body["messages"], "stream": False}
    body |= {"model": "m"}
    assert client.post(path, body).status == 200
    cut(file)
    answer = client.post(path, body)
    text = answer.body.decode()
    assert (answer.status, "secret-folder" in text, os.path.dirname(file) in text) == (503, False, False)
    for other in ("/api/tags", "/api/ps", "/v1/models", "/ready", "/metrics"):
        found = client.get(other)
        assert (found.status, os.path.dirname(file) in found.body.decode()) == (200, False)
    shown = client.post("/api/show", {"model": "m"})
    assert (shown.status, os.path.dirname(file) in shown.body.decode()) == (503, False)


def test_adapters_that_can_not_be_loaded_are_named_as_they_were_asked_for(engine, tmp_path, admins):
    (tmp_path / "loras").mkdir()
    (tmp_path / "loras" / "bad.gguf").write_bytes(b"GGUF")
    (tmp_path / "loras" / "folder").mkdir()
    client = Client(create_app({"tiny": engine}, ServerConfig(lora_dir=str(tmp_path / "loras"), admin_key_file=admins)))
    for name in ("bad.gguf", "folder"):
        answer = client.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": name}, ADMIN)
        assert (answer.status, str(tmp_path) in answer.body.decode(), name in answer.body.decode()) == (
            400,
            False,
            True,
        )


def test_a_request_on_its_way_when_the_model_is_lost_is_refused():
    model = ServedModel("m", state="failed", fault=ox.ModelFileError("/models/m.gguf: cut"))
    with pytest.raises(ApiError, match="the model m can't be used: its file was changed") as found:
        _ = model.ready
    assert (found.value.status, found.value.code) == (503, "engine_failed")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/models/a/b.gguf: cut", "b.gguf: cut"),
        ("nothing of it", "nothing of it"),
        ("no '/v1/x' and '/etc/models/a'", "no '/v1/x' and '/etc/models/a'"),
        ("/models/a/other.gguf is beside it", "other.gguf is beside it"),
        ("'/loras/x/y.gguf'", "'x/y.gguf'"),
    ],
)
def test_of_paths_the_names_are_left(text, shown):
    assert without_paths(text, ["/models/a/b.gguf", "/loras/", None]) == shown


def test_looking_at_files_says_nothing_of_models_without_any(engine, caplog):
    client = Client(create_app({"tiny": engine}, ServerConfig()))
    with caplog.at_level(logging.INFO):
        client.app.service.models.look_at_files()
    assert (caplog.text, client.get("/ready").status) == ("", 200)
