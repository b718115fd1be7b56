"""Models from a hub: a stand-in server on this machine, and the cache alone. In processes of their own, since the Hub's
library reads its settings from the environment when it is imported."""

import pytest

import oxillama as ox
from oxillama.hub import download, shard_names
from tests.hub import Hub, answer_of

pytest.importorskip("huggingface_hub")


SCRIPT = """
import json, sys
import oxillama as ox
arguments = json.loads(sys.argv[1])
try:
    with ox.from_hub(**arguments) as engine:
        print(json.dumps(["ok", engine.model_config.arch, engine.num_threads]))
except ox.OxiLlamaError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def from_hub(endpoint, home, offline=False, **arguments):
    return answer_of(SCRIPT, endpoint, home, offline, arguments)


def test_download_then_cache_alone(hub, tmp_path):
    tiny = {"repo_id": "owner/model", "filename": "tiny.gguf", "num_threads": 1}
    assert from_hub(hub, tmp_path, **tiny) == ["ok", "llama", 1]
    assert any(r.startswith("GET") for r in Hub.requests)
    Hub.requests.clear()
    assert from_hub(hub, tmp_path, offline=True, **tiny) == ["ok", "llama", 1]
    assert Hub.requests == []


def test_offline_without_the_file(hub, tmp_path):
    kind, message = from_hub(hub, tmp_path, offline=True, repo_id="owner/model", filename="tiny.gguf")
    assert kind == "ModelNotFoundError"
    assert "'tiny.gguf' of 'owner/model'" in message
    assert "HF_HUB_OFFLINE" in message
    assert Hub.requests == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"filename": "absent.gguf"}, "'absent.gguf' of 'owner/model'"),
        ({"repo_id": "owner/nothing", "filename": "tiny.gguf"}, "'tiny.gguf' of 'owner/nothing'"),
        ({"filename": "tiny.gguf", "revision": "v9"}, "'tiny.gguf' of 'owner/model' at 'v9'"),
    ],
)
def test_what_is_not_there(hub, tmp_path, arguments, named):
    kind, message = from_hub(hub, tmp_path, **{"repo_id": "owner/model", **arguments})
    assert kind == "ModelNotFoundError"
    assert named in message
    assert "\n" not in message


def test_a_file_that_is_no_model(hub, tmp_path):
    assert from_hub(hub, tmp_path, repo_id="owner/model", filename="bad.gguf")[0] == "GGUFError"


def test_a_hub_that_refuses(hub, tmp_path):
    kind, message = from_hub(hub, tmp_path, repo_id="owner/locked", filename="tiny.gguf")
    assert kind == "ModelNotFoundError"  # neither in the cache nor to be had
    assert "'tiny.gguf' of 'owner/locked'" in message


@pytest.mark.parametrize(
    "arguments",
    [
        {"repo_id": "", "filename": "a.gguf"},
        {"repo_id": "owner/model", "filename": ""},
        {"repo_id": 5, "filename": "a.gguf"},
        {"repo_id": "owner/model", "filename": "a.gguf", "revision": 5},
        {"repo_id": "owner/model", "filename": "a.gguf", "revision": ""},
        {"repo_id": "a/b/c", "filename": "a.gguf"},
    ],
)
def test_bad_arguments(tmp_path, arguments):
    kind, message = from_hub("http://127.0.0.1:9", tmp_path, offline=True, **arguments)
    assert kind == "ConfigError"
    assert "must" in message


@pytest.mark.parametrize(
    ("repo_id", "filename", "message"),
    [
        ("model", "a.gguf", "repo_id must be 'owner/name'"),
        ("owner/", "a.gguf", "repo_id must be 'owner/name'"),
        ("owner/model/a.gguf", "a.gguf", "repo_id must be 'owner/name'.*: the file's name is an argument of its own"),
        ("https://huggingface.co/owner/model", "a.gguf", "repo_id must be 'owner/name'"),
        ("owner/..", "a.gguf", "repo_id must"),
        ("own er/model", "a.gguf", "repo_id must"),
        ("owner/model--x", "a.gguf", "repo_id must"),
        ("-owner/model", "a.gguf", "repo_id must"),
        ("owner/" + "m" * 97, "a.gguf", "repo_id must"),
        (None, "a.gguf", "repo_id must .*, not None"),
        ("owner/model", None, "filename must be a file's path in the repository, .*, not None"),
        ("owner/model", "/a.gguf", "filename must be a file's path"),
        ("owner/model", "../a.gguf", "filename must be a file's path"),
        ("owner/model", "b/../a.gguf", "filename must be a file's path"),
        ("owner/model", "b//a.gguf", "filename must be a file's path"),
        ("owner/model", "*Q4_K_M.gguf", "filename must be a file's path"),
        ("owner/model", "a\n.gguf", "filename must be a file's path"),
        ("owner/model", "b\\a.gguf", "filename must be a file's path"),
        ("owner/model", "model.safetensors", "filename must be that of a GGUF file, which ends in .gguf, not 'model.s"),
        ("owner/model", "b/m-00002-of-00003.gguf", "first file, 'b/m-00001-of-00003.gguf', not"),
    ],
)
def test_names_that_can_be_none_are_refused_without_a_network(monkeypatch, repo_id, filename, message):
    asked = []
    monkeypatch.setattr("oxillama.hub._fetch", lambda *names: asked.append(names))
    with pytest.raises(ox.ConfigError, match=message):
        ox.from_hub(repo_id, filename)
    assert asked == []


@pytest.mark.parametrize(
    ("repo_id", "filename"),
    [
        ("bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf"),
        ("a/b", "BF16/model (v2) é.GGUF"),
        ("_o/n_.x-1", "m-00001-of-00003.gguf"),
    ],
)
def test_names_that_the_hub_has_are_asked_for(monkeypatch, repo_id, filename):
    monkeypatch.setattr("oxillama.hub._fetch", lambda *names: "/".join(map(str, names)))
    assert download(repo_id, filename) == f"{repo_id}/{filename}/None"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("m.gguf", ["m.gguf"]),
        ("d/m-00001-of-00003.gguf", [f"d/m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]),
        ("m-00002-of-00003.gguf", ["m-00002-of-00003.gguf"]),
        ("m-00001-of-3.gguf", ["m-00001-of-3.gguf"]),
        ("m-00001-of-00003.bin", ["m-00001-of-00003.bin"]),
    ],
)
def test_split_models_are_fetched_whole(name, parts):
    assert shard_names(name) == parts
