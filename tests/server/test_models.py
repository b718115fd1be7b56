"""Several models, adapters, and what administrators do with them."""

import asyncio
import math
import os
import time
from pathlib import Path

import pytest

import oxillama as ox
from oxillama.server import ServerConfig, create_app
from oxillama.server.errors import ApiError
from oxillama.server.models import ServedModel
from oxillama.server.residence import leaves_in
from tests.server.client import HI, Client, until
from tests.speculative.drafting import make_draft

ADMIN = {"x-api-key": "admin-secret"}
COMPLETIONS = "/v1/completions"


@pytest.fixture
def admins(tmp_path):
    file = tmp_path / "admins"
    file.write_text("root:admin-secret\n")
    return str(file)


def loading(path=None, log=None, **options):
    def load():
        if log is not None:
            log.append(path)
        return ox.load(path, num_threads=1, **options)

    return load


def served(models, **settings):
    app = create_app({model.id: model for model in models}, ServerConfig(**settings))
    return Client(app)


def states(client):
    return client.get("/ready").json["models"]


def test_models_that_load_on_demand_leave_again(admins):
    log = []
    first = ServedModel("first", load=loading(log=log), at_start=False)
    second = ServedModel("second", load=loading(log=log, context_size=64), at_start=False)
    client = served([first, second], models_max=1, admin_key_file=admins)
    assert states(client) == {"first": "idle", "second": "idle"}
    assert client.get("/ready").status == 200  # nothing is loaded at start
    assert client.post(COMPLETIONS, prompt="a", max_tokens=2).status == 200
    assert states(client) == {"first": "ready", "second": "idle"}
    assert client.post(COMPLETIONS, prompt="a", max_tokens=2, model="second").status == 200
    assert states(client) == {"first": "idle", "second": "ready"}
    answer = client.post("/admin/models/unload", {"model": "second"}, ADMIN).json
    assert answer == {"model": "second", "state": "idle"}
    assert client.post("/admin/models/load", {"model": "second"}, ADMIN).json["state"] == "ready"
    assert len(log) == 3
    asyncio.run(client.app.service.models.close())


def three(log, most, **settings):
    """Models that load on demand: a server of them, and the most that were in memory at a time."""
    models, seen = [], []

    def loader(name):
        def load():
            log.append(name)
            time.sleep(0.05)
            seen.append(sum(m.engine is not None for m in models) + 1)
            return ox.load(num_threads=1)

        return load

    models += [ServedModel(name, load=loader(name), at_start=False) for name in "abc"]
    return served(models, models_max=most, **settings), seen


def test_models_that_are_wanted_at_once():
    log = []
    client, seen = three(log, 1)
    models = client.app.service.models

    async def one(name):
        chosen = await models.use(name)
        with chosen.in_use():
            assert chosen.model.state == "ready"
            await asyncio.sleep(0.01)

    async def main():
        await asyncio.gather(*(one(name) for name in "abcabc"))
        loaded = [m.id for m in models.all.values() if m.engine is not None]
        await models.close()
        return loaded

    assert asyncio.run(main()) == ["c"]
    assert (log, seen) == (["a", "b", "c"], [1, 1, 1])


def test_a_model_that_two_wait_for_needs_room_once():
    log = []
    client, _ = three(log, 2)
    models = client.app.service.models

    async def main():
        for name in "ab":
            await models.use(name)
        await asyncio.gather(models.use("c"), models.use("c"), models.use("c"))
        states = [m.state for m in models.all.values()]
        await models.close()
        return states

    assert asyncio.run(main()) == ["idle", "ready", "ready"]
    assert log == ["a", "b", "c"]


def test_there_is_no_room_beside_a_model_in_use():
    log = []
    client, _ = three(log, 1, queue_timeout=2.0)
    models = client.app.service.models

    async def main():
        with (await models.use("a")).in_use():
            with pytest.raises(ApiError, match="models-max") as raised:
                await models.use("b")
            assert (raised.value.status, raised.value.code) == (503, "loading")
        arriving = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(arriving) == 1  # it looks for room until no request waits
        await asyncio.gather(*arriving)
        await models.close()

    asyncio.run(main())
    assert log == ["a"]


def test_a_model_that_idles_leaves_memory():
    model = ServedModel("one", load=loading(), at_start=False)
    client = served([model], idle_unload=0.01)
    assert client.post(COMPLETIONS, prompt="a", max_tokens=2).status == 200
    time.sleep(0.02)
    asyncio.run(client.app.service.models.unload_idle())
    assert states(client) == {"one": "idle"}


def test_a_server_whose_model_idled_is_ready():
    model = ServedModel("one", load=loading())
    client = served([model])
    assert (client.get("/ready").status, client.get("/ready").json["status"]) == (503, "loading")
    asyncio.run(client.app.service.models.load_all())
    assert client.get("/ready").status == 200
    asyncio.run(client.app.service.models.unload(model))
    assert (client.get("/ready").status, states(client)) == (200, {"one": "idle"})


def test_a_model_stays_for_as_long_as_was_asked():
    model = ServedModel("one", load=loading(), at_start=False)
    client = served([model], idle_unload=0.01)
    service = client.app.service

    async def states_after(seconds, wait):
        await service.models.use("one")
        service.residence.keep(model, seconds)
        await service.residence.leave(model)
        found = [model.state]
        await asyncio.sleep(wait)
        await service.models.unload_idle()
        return [*found, model.state]

    assert asyncio.run(states_after(0, 0)) == ["idle", "idle"]
    assert asyncio.run(states_after(0.05, 0.6)) == ["ready", "idle"]
    assert asyncio.run(states_after(60, 0.1)) == ["ready", "ready"]
    assert asyncio.run(states_after(math.inf, 0.1)) == ["ready", "ready"]
    assert leaves_in(model, 0.01) == math.inf
    asyncio.run(service.models.close())


def test_a_model_in_use_leaves_when_it_is_idle():
    model = ServedModel("one", load=loading(), at_start=False)
    service = served([model]).app.service

    async def main():
        with (await service.models.use("one")).in_use():
            service.residence.keep(model, 0)
            await service.residence.leave(model)
            await asyncio.sleep(0.3)
            assert model.state == "ready"
        assert await until(lambda: model.state == "idle")

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_drafts_of_the_server_change_no_text(engine, kind):
    own = {"draft": "lookup"} if kind == "lookup" else {"load_draft": lambda: ox.DraftModel(num_threads=1)}
    model = ServedModel("one", load=loading(), num_speculative=3, **own)
    client = served([model])
    asyncio.run(client.app.service.models.load_all())
    fields = {"prompt": "The cat sat. " * 12, "max_tokens": 40, "temperature": 0}
    answer = client.post(COMPLETIONS, fields).json
    assert answer["choices"][0]["text"] == engine.generate(fields["prompt"], max_tokens=40, temperature=0).text
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0
    details = client.post(COMPLETIONS, fields | {"draft": "off"}).json["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == 0
    draft = model.draft
    asyncio.run(client.app.service.models.close())
    if kind == "model":
        assert model.draft is None
        with pytest.raises(ox.EngineClosedError):
            draft.__reduce__()


def test_a_draft_with_other_tokens(caplog):
    client = served([ServedModel("one", load=loading(), load_draft=make_draft)])
    asyncio.run(client.app.service.models.load_all())
    assert states(client) == {"one": "failed"}
    assert "the draft's vocabulary is not the model's" in caplog.text


def test_a_model_that_cant_be_loaded(tmp_path, caplog):
    model = ServedModel("bad", load=loading(str(tmp_path / "none.gguf")))
    other = served([model])
    assert other.get("/ready").status == 503
    answer = other.post(COMPLETIONS, prompt="a", model="bad")
    assert (answer.status, answer.error["code"]) == (503, "engine_failed")
    assert other.get("/health").json == {"status": "failed"}
    assert "the model bad can't be loaded" in caplog.text


def test_what_is_no_engine():
    with pytest.raises(ox.ConfigError, match="engines must be loaded engines"):
        create_app({"x": 3})
    with pytest.raises(ox.ConfigError, match="engines is empty"):
        create_app({})


@pytest.fixture(scope="module")
def own():
    with ox.load(num_threads=1) as loaded:
        yield loaded


def test_adapters_are_models(own, adapters, admins):
    file = Path(adapters[0])
    folder = file.parent
    client = Client(create_app({"tiny": own}, ServerConfig(admin_key_file=admins, lora_dir=str(folder))))
    load = {"lora_name": "pirate", "lora_path": file.name}
    assert client.post("/v1/load_lora_adapter", load).status == 401
    assert client.post("/v1/load_lora_adapter", load, ADMIN).json["id"] == "tiny:pirate"
    assert client.post("/v1/load_lora_adapter", load, ADMIN).status == 409
    assert [m["id"] for m in client.get("/v1/models").json["data"]] == ["tiny", "tiny:pirate"]
    options = {"prompt": "Once upon", "max_tokens": 12, "temperature": 0}
    alone = own.generate("Once upon", max_tokens=12, temperature=0, lora=["pirate"])
    for model in ("pirate", "tiny:pirate"):
        assert client.post(COMPLETIONS, options | {"model": model}).json["choices"][0]["text"] == alone.text
    scaled = own.generate("Once upon", max_tokens=12, temperature=0, lora=[("pirate", 0.5)])
    fields = options | {"lora": [{"name": "pirate", "scale": 0.5}]}
    assert client.post(COMPLETIONS, fields).json["choices"][0]["text"] == scaled.text
    assert client.post("/v1/unload_lora_adapter", {"lora_name": "pirate"}, ADMIN).status == 200
    assert client.post("/v1/unload_lora_adapter", {"lora_name": "pirate"}, ADMIN).status == 404
    assert client.post(COMPLETIONS, options | {"model": "pirate"}).status == 404


@pytest.mark.parametrize(("path", "status"), [
    ("../outside.gguf", 400), ("/etc/passwd", 400), ("link.gguf", 400), (".", 400), ("a\0b", 400), ("none.gguf", 404),
    ("notes.txt", 400), ("sub/../../outside.gguf", 400),
])  # fmt: skip
def test_adapters_come_from_their_folder_alone(own, admins, tmp_path, path, status):
    folder = tmp_path / "adapters"
    folder.mkdir()
    (tmp_path / "outside.gguf").write_bytes(b"GGUF")
    (folder / "notes.txt").write_text("no adapter")
    os.symlink(tmp_path / "outside.gguf", folder / "link.gguf")
    client = Client(create_app({"tiny": own}, ServerConfig(admin_key_file=admins, lora_dir=str(folder))))
    answer = client.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path}, ADMIN)
    assert (answer.status, answer.error["param"]) == (status, "lora_path")


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_files_in_the_folder_of_an_adapter_lie_in_the_folder_of_adapters(own, admins, tmp_path, file):
    """What an error tells of a file could tell some of its bytes."""
    inside = tmp_path / "adapters" / "peft"
    inside.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_text("root:x:0:0:secret")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (inside / name).write_text('{"peft_type": "LORA", "r": 8, "lora_alpha": 16}')
    (inside / file).unlink()
    os.symlink(outside, inside / file)
    client = Client(create_app({"tiny": own}, ServerConfig(admin_key_file=admins, lora_dir=str(inside.parent))))
    answer = client.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "peft"}, ADMIN)
    assert answer.error["message"] == "lora_path must be below the server's folder of adapters, not 'peft'"
    os.rename(outside, inside.parent / "outside")  # which is inside now
    (inside / file).unlink()
    os.symlink(inside.parent / "outside", inside / file)
    answer = client.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "peft"}, ADMIN)
    assert (answer.status, file in answer.error["message"]) == (400, True)


@pytest.mark.parametrize(("name", "status"), [
    ("tiny", 409), ("other", 409), ("alias", 409), ("b", 409), ("a\nb", 400), ("\0", 400), ("\u202e", 400), ("c", 200),
])  # fmt: skip
def test_names_of_adapters_are_no_other_names(own, adapters, admins, name, status):
    models = {
        "tiny": ServedModel("tiny", own), "other": ServedModel("other", load=ox.load, at_start=False),
        "tiny:b": ServedModel("tiny:b", load=ox.load, at_start=False),
    }  # fmt: skip
    models["tiny"].engine = ox.AsyncEngine(own)
    models["tiny"].aliases = ("alias",)
    folder = str(Path(adapters[0]).parent)
    client = Client(create_app(models, ServerConfig(admin_key_file=admins, lora_dir=folder)))
    answer = client.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": Path(adapters[0]).name}, ADMIN)
    assert answer.status == status
    if status == 200:
        assert client.post("/v1/unload_lora_adapter", {"lora_name": name}, ADMIN).status == 200
    else:
        assert answer.error["param"] == "lora_name"


def test_an_adapter_that_leaves_while_a_request_waits_is_not_found(own, adapters):
    """By the name that the request has, and not by a field that it hasn't."""
    own.load_lora("brief", adapters[0])
    client = Client(create_app({"tiny": own}, ServerConfig()))
    models = client.app.service.models
    use = models.use

    async def used(name):
        found = await use(name)
        own.unload_lora("brief")
        return found

    models.use = used
    answer = client.post(COMPLETIONS, prompt="Once", max_tokens=2, model="tiny:brief")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")


def test_administration_needs_its_key(configured, admins):
    for client, status in ((configured(), 403), (configured(admin_key_file=admins), 401)):
        for path in ("/admin/requests", "/admin/nothing"):
            answer = client.get(path)
            assert answer.status == status
    client = configured(admin_key_file=admins, api_key="a-long-secret")
    assert client.get("/admin/requests", **{"x-api-key": "a-long-secret"}).error["code"] == "admin_only"


def test_requests_are_listed_and_ended(own, admins):
    client = Client(create_app({"tiny": own}, ServerConfig(admin_key_file=admins)))
    body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 900, "ignore_eos": true}'

    async def main():
        headers = {"content-type": "application/json", "x-request-id": "mine", "x-api-key": "admin-secret"}
        running = asyncio.ensure_future(client.acall("POST", "/v1/chat/completions", body, headers))
        while not own.metrics_snapshot().running:
            await asyncio.sleep(0.002)
        listed = (await client.acall("GET", "/admin/requests", b"", ADMIN)).json
        assert [(r["id"], r["model"]) for r in listed["requests"]] == [("mine", "tiny")]
        assert listed["running"] == 1
        assert (await client.acall("DELETE", "/admin/requests/none", b"", ADMIN)).status == 404
        assert (await client.acall("DELETE", "/admin/requests/mine", b"", ADMIN)).json == {"cancelled": 1}
        assert await running is None  # nothing was sent
        async with asyncio.timeout(10):
            while own.metrics_snapshot().running:
                await asyncio.sleep(0.002)

    asyncio.run(main())


def test_caches_are_cleared(own, admins):
    client = Client(create_app({"tiny": own}, ServerConfig(admin_key_file=admins, tool_format="hermes")))
    text = "A long story about a cat and a dog, and a bird too. " * 6

    def cached():
        answer = client.post(COMPLETIONS, {"prompt": text, "max_tokens": 1}, ADMIN).json
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "title": text}}}
    cached()
    assert cached() > 0
    chat = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "tools": [tool],
        "tool_choice": "required",
    }
    assert client.post("/v1/chat/completions", chat, ADMIN).status == 200
    grammars = own.context.factory._grammars
    kept = own.tokenizer._kept._kept, grammars._kept, grammars._faults
    assert all(kept)
    assert client.post("/admin/cache/clear", b"", ADMIN).status == 200
    assert not any(kept)
    assert cached() == 0


def test_a_server_that_drains_takes_nothing(own, admins):
    client = Client(create_app({"tiny": own}, ServerConfig(admin_key_file=admins)))
    assert client.post("/admin/drain", b"", ADMIN).json == {"status": "draining"}
    answer = client.post("/v1/chat/completions", {"messages": HI}, ADMIN)
    assert (answer.status, answer.error["code"]) == (503, "draining")
    assert (client.get("/ready").status, client.get("/health").status) == (503, 503)
