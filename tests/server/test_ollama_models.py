"""Models of Ollama's API: lists, what is told of one, names that mean it, and what there is in place of a registry."""

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.server import ServerConfig, create_app
from oxillama.server.models import ServedModel
from tests.server.client import HI, Client, until

MODELS = Path(__file__).parents[1] / "data" / "models"
NOWHERE = ("/api/pull", "/api/push", "/api/create")


def by_name(answer):
    return {one["name"]: one for one in answer.json["models"]}


def on_demand(path, **fields):
    return ServedModel("later", load=lambda: ox.load(path, num_threads=1), path=str(path), at_start=False, **fields)


def test_models_are_listed(client, engine):
    ((name, found),) = by_name(client.get("/api/tags")).items()
    assert name == found["model"] == "tiny:latest"
    assert found["size"] == Path(shipped_model()).stat().st_size
    assert len(bytes.fromhex(found["digest"])) == 32
    modified = datetime.fromisoformat(found["modified_at"])
    assert modified.timestamp() == pytest.approx(Path(shipped_model()).stat().st_mtime, abs=1e-3)
    assert found["details"] == {
        "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"], "parameter_size": "2.62M",
        "quantization_level": "Q8_0", "context_length": 1024, "embedding_length": 256,
    }  # fmt: skip
    assert found["capabilities"] == ["completion", "tools"]
    assert client.call("HEAD", "/api/tags").status == 200


def test_a_model_that_is_not_loaded_is_told_of_by_its_file(engine):
    model = on_demand(shipped_model(), weights=7, aliases=("org/name:q8", "*"))
    client = Client(create_app({"tiny": engine, "later": model}, ServerConfig()))
    listed = by_name(client.get("/api/tags"))
    assert list(listed) == ["tiny:latest", "later:latest", "org/name:q8"]
    same = ("digest", "details", "capabilities", "modified_at")
    for name in ("later:latest", "org/name:q8"):
        assert {key: listed[name][key] for key in same} == {key: listed["tiny:latest"][key] for key in same}
        assert listed[name]["size"] == 7
    shown, loaded = (client.post("/api/show", model=name).json for name in ("later", "tiny"))
    assert model.state == "idle"
    assert shown["model_info"] == loaded["model_info"]
    assert (shown["template"], shown["parameters"]) == (loaded["template"], "")
    assert list(by_name(client.get("/api/ps"))) == ["tiny:latest"]


@pytest.mark.parametrize(("form", "calls"), [("none", []), ("text", []), ("generic", ["tools"])])
def test_tools_are_known_by_the_servers_format(engine, form, calls):
    """Of a model that is loaded, and of a file alone."""
    models = {"tiny": engine, "later": on_demand(shipped_model(), weights=7)}
    listed = by_name(Client(create_app(models, ServerConfig(tool_format=form))).get("/api/tags"))
    assert [one["capabilities"] for one in listed.values()] == [["completion", *calls]] * 2


def test_a_model_of_which_nothing_is_known(engine, tmp_path):
    bare = ServedModel("bare", load=lambda: ox.load(num_threads=1), at_start=False)
    broken = ServedModel("broken", load=bare.load, path=str(tmp_path / "none.gguf"), at_start=False)
    client = Client(create_app({"bare": bare, "broken": broken}, ServerConfig()))
    for name, one in by_name(client.get("/api/tags")).items():
        assert (name, one["size"], one["details"]["family"]) == (name, 0, "")
        assert len(bytes.fromhex(one["digest"])) == 32
    assert client.post("/api/show", model="bare").json["details"]["family"] == "llama"
    assert bare.state == "ready"
    answer = client.post("/api/show", model="broken")
    assert (answer.status, set(answer.json)) == (503, {"error"})


def test_models_in_memory(engine):
    model = ServedModel("later", load=lambda: ox.load(num_threads=1, context_size=64), at_start=False)
    client = Client(create_app({"later": model, "tiny": engine}, ServerConfig()))
    client.post("/api/chat", model="later", keep_alive="1h", messages=HI, options={"num_predict": 1})
    found = by_name(client.get("/api/ps"))
    assert list(found) == ["tiny:latest", "later:latest"]  # the one first that stays longer
    left = [datetime.fromisoformat(one["expires_at"]) - datetime.now(UTC) for one in found.values()]
    assert left[0].days > 36500
    assert 3500 < left[1].total_seconds() <= 3600
    assert [(one["size_vram"], one["context_length"]) for one in found.values()] == [(0, 1024), (0, 64)]
    client.post("/api/generate", model="later", keep_alive=0)
    assert list(by_name(client.get("/api/ps"))) == ["tiny:latest"]


def test_the_context_is_that_which_requests_have():
    with ox.load(num_threads=1, context_size=100) as small:
        client = Client(create_app({"small": small}, ServerConfig()))
        shown = client.post("/api/show", model="small").json
        listed = by_name(client.get("/api/tags"))["small:latest"]
    assert shown["model_info"]["llama.context_length"] == listed["details"]["context_length"] == 100
    assert shown["parameters"].startswith(f"{'num_ctx':<30} 100\n")


def test_what_is_told_of_a_model(client, engine):
    found = client.post("/api/show", model="Tiny:latest").json
    assert found == client.post("/api/show", name="tiny").json
    assert found["template"] == engine.metadata["tokenizer.chat_template"]
    assert found["license"] == "apache-2.0"
    assert found["parameters"].splitlines()[:2] == [f"{'num_ctx':<30} 1024", f"{'temperature':<30} 0.8"]
    assert "PARAMETER top_k 40" in found["modelfile"]
    assert str(Path(shipped_model()).parent) not in str(found)
    info = found["model_info"]
    assert (info["general.architecture"], info["llama.context_length"]) == ("llama", 1024)
    assert info["general.parameter_count"] == 2623744
    assert info["tokenizer.ggml.tokens"] == []
    assert info["general.tags"] == engine.metadata["general.tags"].tolist()
    assert "tensors" not in found
    whole = client.post("/api/show", model="tiny", verbose=True).json
    assert whole["model_info"]["tokenizer.ggml.tokens"] == engine.metadata["tokenizer.ggml.tokens"].tolist()
    assert {"name": "token_embd.weight", "type": "Q8_0", "shape": [256, 1536]} in whole["tensors"]


@pytest.mark.parametrize(("file", "capabilities"), [
    ("bert.gguf", ["embedding"]), ("qwen3.gguf", ["completion"]),
])  # fmt: skip
def test_what_models_can_be_asked_for(file, capabilities):
    with ox.load(MODELS / file, num_threads=1) as loaded:
        loaded_one = Client(create_app({"one": loaded}, ServerConfig()))
        later = Client(create_app({"later": on_demand(MODELS / file)}, ServerConfig()))
        for client, name in ((loaded_one, "one"), (later, "later")):
            assert client.post("/api/show", model=name).json["capabilities"] == capabilities
        if capabilities == ["embedding"]:
            for path, what in (("/api/chat", "chat"), ("/api/generate", "generate")):
                answer = loaded_one.post(path, model="one", messages=HI, prompt="hi")
                assert (answer.status, answer.error) == (400, f'"one" does not support {what}')
        else:  # without a template, a prompt goes to the model as it is
            answer = loaded_one.post("/api/chat", model="one", messages=HI)
            assert answer.error == '"one" does not support chat: it has no chat template'
            alone = loaded.generate("ab", max_tokens=3, temperature=0)
            fields = {"model": "one", "prompt": "ab", "stream": False, "options": {"temperature": 0, "num_predict": 3}}
            answer = loaded_one.post("/api/generate", fields).json
            assert answer["response"] == alone.text
            assert answer["context"] == loaded.tokenize("ab") + alone.token_ids
            more = loaded_one.post("/api/generate", {**fields, "context": answer["context"]}).json
            assert more["context"][: len(answer["context"])] == answer["context"]


def test_a_template_that_thinks_and_calls(configured, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    client = configured(chat_template=str(path), tool_format="hermes")
    assert client.post("/api/show", model="tiny").json["capabilities"] == ["completion", "tools", "thinking"]


def test_versions(client):
    found = client.get("/api/version").json
    assert found["oxillama"] == "0.1.0"
    assert tuple(map(int, found["version"].split("."))) >= (0, 6, 4)  # that clients ask for
    assert client.call("HEAD", "/api/version").status == 200


@pytest.mark.parametrize("path", NOWHERE)
def test_there_is_no_registry(client, path):
    answer = client.post(path, model="llama3.2", stream=True)
    assert answer.status == 501
    assert "models are files that the server is started with: oxillama serve -m FILE" in answer.error
    assert "served already" not in answer.error
    assert client.post(path, model="tiny").error.endswith("; tiny is served already")


def test_nothing_is_copied_deleted_or_uploaded(client):
    assert client.call("DELETE", "/api/delete", b'{"model": "tiny"}').status == 501
    assert client.post("/api/copy", source="a", destination="b").status == 501
    blob = "/api/blobs/sha256:" + "a" * 64
    assert client.call("POST", blob, b"x" * 2_000_000).status == 501  # however large it is: it isn't read
    assert client.call("HEAD", blob).status == 404


def test_the_registry_is_for_administrators(configured, tmp_path):
    (tmp_path / "keys").write_text("ann:a-long-secret\n")
    (tmp_path / "admins").write_text("root:admin-secret\n")
    client = configured(api_key_file=str(tmp_path / "keys"), admin_key_file=str(tmp_path / "admins"))
    for path in (*NOWHERE, "/api/copy", "/api/blobs/sha256:aa"):
        answers = [client.post(path, {}, {"x-api-key": key}) for key in ("", "a-long-secret", "admin-secret")]
        assert [answer.status for answer in answers] == [401, 403, 501]
        assert "needs the key of an administrator; models are files" in answers[1].error


@pytest.mark.parametrize(("headers", "status"), [
    ({"content-type": "application/x-www-form-urlencoded"}, 200), ({"content-type": ""}, 200),
    ({"content-type": "text/plain", "origin": "http://localhost"}, 415),
    ({"content-type": "text/plain", "sec-fetch-site": "same-origin"}, 415),
    ({"content-type": "application/json", "origin": "http://localhost"}, 200),
    ({"content-type": "application/json", "origin": "https://evil.example"}, 403),
])  # fmt: skip
def test_bodies_are_json_under_any_type_but_for_pages(client, headers, status):
    """`curl -d` sends a form, as Ollama's own documentation has it."""
    answer = client.post("/api/generate", {"model": "tiny", "prompt": "a", "options": {"num_predict": 1}}, headers)
    assert answer.status == status
    assert status == 200 or set(answer.json) == {"error"}


def test_errors_have_ollamas_form(client):
    assert client.get("/api/nothing").json == {"error": "there is no /api/nothing"}
    assert client.get("/api/chat").json == {"error": "GET is not for /api/chat: it takes POST"}
    assert client.post("/api/chat", b"{").json["error"].startswith("the body is no JSON")
    assert client.post("/api/chat", b"").status == 400
    with_host = client.get("/api/tags", host="rebound.example")
    assert (with_host.status, set(with_host.json)) == (403, {"error"})


def test_a_server_that_ends(configured):
    client = configured()
    client.app.service.draining = True
    answer = client.post("/api/chat", model="tiny", messages=HI)
    assert (answer.status, answer.json) == (503, {"error": "the server ends"})


def test_adapters_are_names(adapters):
    with ox.load(num_threads=1) as own:
        own.load_lora("pirate", adapters[0])
        client = Client(create_app({"tiny": own}, ServerConfig()))
        listed = by_name(client.get("/api/tags"))
        assert list(listed) == ["tiny:latest", "tiny:pirate"]
        assert listed["tiny:pirate"]["details"]["parent_model"] == "tiny:latest"
        assert listed["tiny:pirate"]["digest"] != listed["tiny:latest"]["digest"]
        assert "ADAPTER pirate" in client.post("/api/show", model="tiny:pirate").json["modelfile"]
        alone = own.generate("Once", max_tokens=12, temperature=0, lora=["pirate"]).text
        fields = {"prompt": "Once", "raw": True, "stream": False, "options": {"temperature": 0, "num_predict": 12}}
        for name in ("tiny:pirate", "Tiny:Pirate", "pirate", "pirate:latest"):
            assert client.post("/api/generate", {**fields, "model": name}).json["response"] == alone
        vector = own.embed("a", lora=["pirate"]).tolist()
        assert (
            np.float32(client.post("/api/embeddings", model="pirate", prompt="a").json["embedding"]).tolist() == vector
        )


def test_lists_are_quick_while_models_load(engine):
    """No list waits for a model."""
    go_on = threading.Event()
    model = ServedModel("slow", load=lambda: go_on.wait(60), at_start=False)
    client = Client(create_app({"tiny": engine, "slow": model}, ServerConfig(queue_timeout=0.05)))

    async def main():
        waiting = asyncio.ensure_future(client.acall("POST", "/api/generate", b'{"model": "slow"}', {}))
        assert await until(lambda: model.state == "loading")
        listed = await client.acall("GET", "/api/tags", b"", {})
        state, waited = model.state, await waiting
        go_on.set()
        return listed, state, waited

    listed, state, waited = asyncio.run(main())
    assert (len(listed.json["models"]), state, waited.status) == (2, "loading", 503)
