"""Commands of models by name: pull, list, show, rm, ps; and names and words where others are meant."""

import json
import os
import shutil
from pathlib import Path

import pytest

from oxillama.cli.habits import unknown_command
from oxillama.cli.models import age
from oxillama.core.loading import shipped_model
from tests.hub import put
from tests.server.client import serving

MODEL = Path(shipped_model()).read_bytes()


@pytest.fixture
def stored(places):
    (places / "store" / "sub").mkdir(parents=True)
    shutil.copy(shipped_model(), places / "store" / "stories-Q8_0.gguf")
    (places / "store" / "sub" / "broken.gguf").write_bytes(b"GGUF junk")
    return places


def error(found):
    status, out, err = found
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    return err.removeprefix("oxillama: error: ").rstrip("\n")


def test_from_a_name_to_a_text(run, near_hub):
    put("m-Q8_0.gguf", MODEL, repo="o/r-GGUF")
    status, out, err = run("pull", "hf:o/r-GGUF")
    assert (status, out) == (0, "o/r-GGUF:Q8_0\n")
    assert err.splitlines() == [
        "there is no Q4_K_M: Q8_0 is the nearest of Q8_0",
        "2.7 MiB in 1 file, fetched: oxillama chat -m o/r-GGUF:Q8_0",
    ]
    assert "here already" in run("pull", "https://huggingface.co/o/r-GGUF")[2]
    texts = {run("run", "Once", "-n", 4, "--seed", 1, "-t", 1, *args)[1] for args in (
        (), ("-m", "o/r-GGUF:Q8_0"), ("-m", "r"), ("-m", "hf:o/r-GGUF"), ("--draft", "r"))}  # fmt: skip
    assert len(texts) == 1
    assert run("tokenize", "Once", "-m", "r")[0] == run("info", "r")[0] == run("show", "m:q8_0")[0] == 0
    assert run("rm", "r")[1] == "removed o/r-GGUF:Q8_0: 2.7 MiB\n"
    assert "the nearest" not in error(run("run", "x", "-m", "r"))


def test_pull_as_json(run, near_hub):
    put("m-Q8_0.gguf", MODEL, repo="o/r")
    status, out, err = run("pull", "--json", "o/r", "hf:o/r:q8_0")
    first, second = map(json.loads, out.splitlines())
    assert (status, err) == (0, "")
    assert (first["name"], first["size"], first["new"], second["new"]) == ("o/r:Q8_0", len(MODEL), 1, 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["llama3.2"],
            "not 'llama3.2': the model of that name in Ollama's library is there as hf:bartowski/Llama-3.2-3B",
        ),
        (["model"], "not 'model': give its owner, too"),
        (["store"], "'store' is a file here"),
        (["hf:o"], "NAME must be hf:OWNER/REPO"),
        (["hf:o/r", "--revision", "../x"], "must be a branch, tag or commit"),
    ],
)
def test_names_that_are_none(run, places, monkeypatch, args, message):
    (places / "store").mkdir()
    monkeypatch.chdir(places)
    assert message in error(run("pull", *args))


def test_list(run, stored, near_hub):
    put("m-Q8_0.gguf", MODEL, repo="o/r")
    run("pull", "hf:o/r")
    lines = run("list")[1].splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "QUANT", "ARCHITECTURE", "AGE", "RUNS"]
    rows = {line.split()[0]: line for line in lines[1:]}
    assert list(rows) == ["o/r:Q8_0", "stories-Q8_0", "sub/broken"]
    assert rows["o/r:Q8_0"].split()[1:] == ["2.7", "MiB", "Q8_0", "llama", "now", "yes"]
    assert "no: " in rows["sub/broken"]
    found = json.loads(run("list", "--json", "STORIES")[1])
    assert [(one["name"], one["runs"], one["architecture"], one["source"], one["reason"]) for one in found] == [
        ("stories-Q8_0", True, "llama", "file", None)
    ]
    assert run("list", "none")[:2] == (0, "")


def test_an_empty_list_says_what_to_do(run, places):
    status, out, err = run("list")
    assert (status, out) == (0, "")
    assert err.startswith(f"no models in {places}/store")
    assert "oxillama pull hf:OWNER/REPO" in err


def test_files_by_hand_are_deleted_only_if_that_is_said(run, stored):
    assert "give --yes to delete it" in error(run("rm", "stories"))
    assert os.listdir(stored / "store") != []
    assert run("rm", "stories", "--yes")[1] == "removed stories-Q8_0: 2.7 MiB\n"
    assert not (stored / "store/stories-Q8_0.gguf").exists()
    assert "; the nearest: sub/broken" in error(run("rm", "brokn"))
    assert "is a path" in error(run("rm", "./sub/broken.gguf"))


def test_nothing_is_removed_if_one_of_several_can_not_be(run, stored):
    assert "there is no model of that name" in error(run("rm", "--yes", "stories", "nothing"))
    assert (stored / "store/stories-Q8_0.gguf").exists()


def test_info_as_json(run, stored):
    found = json.loads(run("info", "--json")[1])
    assert found == json.loads(run("show", "--json", "stories")[1]) | {"file": shipped_model()}
    assert (found["architecture"], found["runs"], found["context_length"]) == ("llama", True, 1024)
    assert found["tensor_types"]["Q8_0"]["bytes"] > 0
    assert found["metadata"]["general.architecture"] == "llama"
    assert "GGUF" in error(run("info", "--json", "sub/broken"))


def test_models_of_a_running_server(run, stored):
    with serving({}, models_dir="store", keep_loaded=("stories",)) as (_, port):
        lines = run("ps", "--url", f"http://127.0.0.1:{port}")[1].splitlines()
        assert lines[0].split() == ["NAME", "STATE", "SIZE", "QUANT", "CONTEXT", "LEAVES", "IN"]
        found = json.loads(run("ps", "--json", "--url", f"127.0.0.1:{port}")[1])
        assert {one["name"] for one in found} == {"stories-Q8_0", "sub/broken"}
    assert "no server answers at" in error(run("ps", "--url", f"http://127.0.0.1:{port}"))
    for wrong in ("ftp://x", "http://", "http://a:b"):
        assert "--url must be the address of a server" in error(run("ps", "--url", wrong))


# ---- habits


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "llama3.2"], "llama3.2 is a model's name, which is given with -m, and is not on this machine: "
         "oxillama pull hf:bartowski/Llama-3.2-3B-Instruct-GGUF, then oxillama run -m "
         "hf:bartowski/Llama-3.2-3B-Instruct-GGUF "
         '"PROMPT", or oxillama chat -m hf:bartowski/Llama-3.2-3B-Instruct-GGUF; see'),
        (["run", "stories"], 'a model is given with -m: oxillama run -m stories "PROMPT", or oxillama chat -m stories'),
        (["run", "stories", "Once upon"], 'oxillama run -m stories "Once upon"'),
        (["chat", "stories"], "a model is given with -m: oxillama chat -m stories; see"),
        (["run", "hf:o/r"], "oxillama pull hf:o/r, then"),
        (["run", "hf.co/o/r:Q8_0"], "oxillama pull hf:o/r:Q8_0, then"),
        (["embed", "o/r:Q8_0"], "oxillama pull hf:o/r:Q8_0, then"),
        (["rnu", "x"], "invalid choice: 'rnu' is no command; did you mean oxillama run?"),
        (["ls"], "did you mean oxillama list?"),
        (["--debug", "sevre"], "did you mean oxillama serve?"),
        (["stories"], "a model is given with -m, after a command: oxillama chat -m stories"),
        (["xyzzy"], "invalid choice: 'xyzzy' is no command; see `oxillama --help`"),
    ],
)  # fmt: skip
def test_habits(run, stored, args, message):
    assert message in error(run(*args))


@pytest.mark.parametrize("prompt", ["hello", "and/or", "Mistral", "Note:", "Once upon a time", "phi", "stories are"])
def test_texts_that_are_texts(run, stored, prompt):
    assert run("run", prompt, "-n", 1, "-t", 1)[0] == 0


def test_a_text_beside_a_model_is_a_text(run, stored):
    assert run("run", "llama3.2", "-m", "stories", "-n", 1, "-t", 1)[0] == 0
    assert run("embed", "mistral", "-t", 1)[0] == 0
    assert run("run", "-", "-n", 1, "-t", 1, stdin="llama3.2")[0] == 0


def test_words_for_commands():
    assert unknown_command("delete", ["rm"]).endswith("did you mean oxillama rm?")
    assert len(unknown_command("x" * 500, ["rm"])) < 120


def test_ages():
    assert [age(s) for s in (0, 59, 60, 7200, 86400, 86400 * 45, 86400 * 800)] == [
        "now", "now", "1 minute", "2 hours", "1 day", "1 month", "2 years"
    ]  # fmt: skip


# ---- settings by the names under which they were given


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--port", "-1"], "--port must be from 0 to 65535"),
        (["--models-max", "-1"], "--models-max must be from 0"),
        (["--tls-cert", "x"], "--tls-cert and --tls-key must be given together"),
        (["--alias", "a=b"], "--alias is for the models of a folder: give --models-dir, too"),
        (["--models-dir", "/no/such"], "--models-dir /no/such: there is no such folder"),
        (["--models-dir", "store", "--keep-loaded", "nothing"], "--keep-loaded 'nothing' is no model of"),
        (["--models-dir", "store", "--draft", "lookup"], "--draft is for one model: give -m, or [[model]] in a file"),
        (["--models-dir", "store", "--lora", "x"], "--lora is for one model"),
        (["--models-dir", "store", "--served-model-name", "x"], "--served-model-name is for one model"),
        (["--host", "0.0.0.0"], "give --api-key-file, or --insecure-no-key"),
    ],
)
def test_errors_name_flags(run, stored, args, message):
    status, _, err = run("serve", "--check-config", *args)
    assert status == 1
    assert message in err


def test_errors_name_variables(run, stored, monkeypatch):
    monkeypatch.setenv("OXILLAMA_SERVE_MAX_N", "0")
    assert "OXILLAMA_SERVE_MAX_N must be from 1 to 128" in run("serve", "--check-config")[2]


def test_errors_name_keys_of_a_file(run, stored):
    (stored / "c.toml").write_text("[server]\nmax_n = 0\n")
    assert "max_n must be from 1 to 128" in run("serve", "--check-config", "--config", str(stored / "c.toml"))[2]


def test_a_folder_is_checked(run, stored):
    status, out, _ = run("serve", "--check-config", "--models-dir", "store", "--alias", "tales=stories", "-t", 1)
    found = json.loads(out)
    assert status == 0
    stories, broken = found["models"]
    assert (stories["id"], stories["aliases"], stories["load"]) == ("stories-Q8_0", ["tales"], "demand")
    assert (broken["id"], "GGUF version" in broken["fault"]) == ("sub/broken", True)
    assert found["files"] == {"models_dir": "2 models"}
