"""Files that command lines name: models on the Hub and in the home folder, and models given as text."""

import json
import os
import shutil

import pytest

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.store.names import FORM
from oxillama.store.pull import Pulled

ONE_THREAD = ["-t", "1"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with a model, and another folder to work in."""
    shutil.copy(shipped_model(), tmp_path / "m.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def error(found):
    """The one line of a command that failed."""
    status, out, err = found
    assert (status, out.strip()) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("oxillama: error: ")
    assert "[Errno" not in err
    return err.removeprefix("oxillama: error: ").rstrip("\n")


def test_home_folder(run, home):
    for args in (
        ["run", "hi", "-n", 2, "-m", "~/m.gguf", *ONE_THREAD],
        ["run", "hi", "-n", 2, "--model=~/m.gguf", "--draft", "~/m.gguf", *ONE_THREAD],
        ["tokenize", "hi", "-m", "~/m.gguf"],
        ["info", "~/m.gguf"],
        ["quantize", "~/m.gguf", "~/out.gguf", "Q4_0", "--allow-requantize", "-t", 1],
    ):
        assert run(*args)[0] == 0
    assert (home / "out.gguf").exists()
    assert os.listdir(home / "work") == []
    (home / "s.json").write_text('{"type": "null"}')
    assert run("run", "x", "--json-schema-file", "~/s.json", *ONE_THREAD)[1] == "null\n"
    assert error(run("run", "x", "--lora", "~/none")) == f"{home}/none: there is no such file"


def test_model_of_the_hub(run, monkeypatch, tmp_path):
    asked = []

    def pull(name, store, report, say):
        asked.append(str(name))
        return Pulled("m", shipped_model(), (), 1, 0, "")

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("OXILLAMA_MODELS", str(tmp_path / "store"))
    monkeypatch.setattr("oxillama.store.pull.pull", pull)
    assert run("tokenize", "hi", "-m", "hf:owner/repo-GGUF/Q8_0/m.gguf")[1] == run("tokenize", "hi")[1]
    assert run("info", "hf:owner/repo/m.gguf")[0] == 0
    assert run("run", "hi", "-n", 1, "-m", "hf:owner/repo/m.gguf", *ONE_THREAD)[0] == 0
    assert run("run", "hi", "-n", 1, "-m", "hf:owner/repo:q8_0", *ONE_THREAD)[0] == 0
    assert asked == ["hf:owner/repo-GGUF/Q8_0/m.gguf", *["hf:owner/repo/m.gguf"] * 2, "hf:owner/repo:Q8_0"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "x", "-m", "hf:owner"], f"--model must be {FORM}, not 'hf:owner'"),
        (["run", "x", "-m", "hf:"], f"--model must be {FORM}, not 'hf:'"),
        (["run", "x", "-m", "hf:owner//m.gguf"], f"--model must be {FORM}, not 'hf:owner//m.gguf'"),
        (["run", "x", "-m", "hf:owner/repo:big"], "--model hf:owner/repo:big: 'big' is no quantisation, such as Q4_K"),
        (["run", "x", "--draft", "hf:owner"], f"--draft must be {FORM}"),
        (["info", "hf:o"], f"FILE must be {FORM}"),
        (["info", "https://example.org/m.gguf"], "FILE must be a file, a name such as"),
        (["run", "x", "--lora", "hf:owner/repo"], "--lora must be hf:OWNER/REPO/FILE, such as "),
        (["run", "x", "-m", "hf:o/r/m.bin"], "--model hf:o/r/m.bin: filename must be that of a GGUF file"),
        (["run", "x", "-m", "hf:o/../m.gguf"], "--model hf:o/../m.gguf: repo_id must be 'owner/name'"),
        (["quantize", "hf:o/r/m.gguf", "hf:o/r/n.gguf", "Q8_0"], "OUT must be a file here"),
        (["merge-lora", "hf:o/r/m.gguf", "a", "hf:o/r/n.gguf"], "OUT must be a file here"),
        (["quantize", "hf:o/r/m.gguf", "", "Q8_0"], "OUT is empty"),
    ],
)
def test_names_of_the_hub_that_are_wrong(run, monkeypatch, args, message):
    monkeypatch.setattr("oxillama.store.pull.pull", lambda *names: pytest.fail("the Hub was asked"))
    assert error(run(*args)).startswith(message)


def test_trouble_with_the_hub_is_one_line(run, monkeypatch):
    def pull(name, store, report, say):
        raise ox.ModelNotFoundError(f"can't get {name.filename!r} of {name.repo_id!r} from the Hub")

    monkeypatch.setattr("oxillama.store.pull.pull", pull)
    assert error(run("run", "x", "-m", "hf:o/r/m.gguf")) == "can't get 'm.gguf' of 'o/r' from the Hub"


@pytest.mark.parametrize("name", ["no/such.gguf", "MODEL.GGUF", "hf:owner/repo/m.gguf", None])
@pytest.mark.parametrize(
    ("command", "rest"),
    [
        (["run"], ' "PROMPT"'),
        (["diffuse"], ' "PROMPT"'),
        (["tokenize"], ' "TEXT"'),
        (["embed"], ' "TEXT"'),
        (["rerank"], ' "QUERY" "TEXT"'),
        (["chat"], ""),
        (["bench"], ""),
        (["chat", "--system", "Be kind."], ""),
    ],
)
def test_model_in_the_place_of_a_text(run, tmp_path, command, rest, name):
    if name is None:  # it is known by how it begins
        name = str(tmp_path / "model")
        shutil.copy(shipped_model(), name)
    hint = f"a model's file is given with -m: oxillama {command[0]} -m {name}{rest}; see `oxillama {command[0]} --help`"
    assert error(run(*command, name)) == hint
    if command == ["run"]:
        assert error(run(*command, name, "Once upon a time")) == hint


def test_text_that_only_looks_like_a_model(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("GGU")
    os.mkfifo(tmp_path / "pipe")
    for text in ("Describe the file model.gguf", "notes", "pipe", "x" * 5000, "a\0b", "~"):
        assert run("tokenize", text)[0] == 0
    assert json.loads(run("tokenize", "-", stdin="model.gguf")[1])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--json-schema-file", "no.json"], "--json-schema-file no.json can't be read: No such file or directory"),
        (["--json-schema-file", "."], "--json-schema-file . can't be read: Is a directory"),
        (["--grammar-file", "no\0"], "--grammar-file 'no\\x00' can't be read: embedded null byte"),
        (["--grammar-file", "~nobody9/x"], "--grammar-file ~nobody9/x can't be read: "),
    ],
)
def test_files_of_text_that_cannot_be_read(run, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    assert error(run("run", "x", *args)).startswith(message.replace("'no\\x00'", repr("no\0")))


def test_folder_that_cannot_be_written(run, tmp_path, monkeypatch):
    def refuse(path, *args, **options):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("oxillama.gguf.quantize_file", lambda source, out, *args, **options: refuse(out))
    found = error(run("quantize", shipped_model(), tmp_path / "out.gguf", "Q8_0"))
    assert found == f"{tmp_path / 'out.gguf'}: Permission denied"


def test_what_is_wrong_with_options_is_found_before_the_model_is_loaded(run, monkeypatch):
    monkeypatch.setattr("oxillama.core.loading.load_parts", lambda *given: pytest.fail("it was loaded"))
    for args in (["--grammar-file", "/no/such"], ["--logit-bias", "x"], ["--kv-budget", "x"]):
        error(run("run", "x", *args))
