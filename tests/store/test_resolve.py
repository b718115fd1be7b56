"""Names where paths are taken: what they mean, and what is said of those that mean nothing."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.cli.habits import model_in_place_of_text, unknown_command
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, ModelNotFoundError
from oxillama.store.resolve import find_model, is_name, kept_path
from tests.hub import Hub, put

MODEL = Path(shipped_model()).read_bytes()


@pytest.fixture
def stored(places):
    """`places` with a model in the store, and one in the home folder."""
    (places / "store").mkdir()
    shutil.copy(shipped_model(), places / "store" / "stories-Q8_0.gguf")
    shutil.copy(shipped_model(), places / "home.gguf")
    return places


def test_paths_and_names(stored, monkeypatch):
    monkeypatch.chdir(stored)
    in_store = str(stored / "store/stories-Q8_0.gguf")
    assert find_model("~/home.gguf") == str(stored / "home.gguf")
    assert find_model("home.gguf") == "home.gguf"
    assert find_model(Path("~/home.gguf")) == str(stored / "home.gguf")
    for name in ("stories", "stories-q8_0", "stories-Q8_0.gguf", "Stories:Q8_0"):
        assert find_model(name) == in_store
    shutil.copy(shipped_model(), stored / "stories")
    assert find_model("stories") == "stories"  # a file that is there counts before names
    assert find_model("no/such.gguf") == "no/such.gguf"  # what opens it says so
    assert find_model("/no/such/file") == "/no/such/file"


def test_engines_by_name(stored):
    for name in ("stories", "~/home.gguf", "stories:q8_0"):
        with ox.load(name, num_threads=1) as engine:
            assert os.path.isabs(engine.config.model_path)
            snapshot = engine.snapshot_bytes()
    with ox.load("stories", num_threads=1) as engine, ox.DraftModel("stories", num_threads=1) as draft:
        assert draft.config.model_path == engine.config.model_path
    with ox.Engine.restore_bytes(snapshot) as engine:
        assert engine.config.model_path == str(stored / "store/stories-Q8_0.gguf")
    with ox.load(num_threads=1, tokenizer_path="stories") as engine:
        assert engine.config.tokenizer_path == str(stored / "store/stories-Q8_0.gguf")


def test_engines_from_the_hub(near_hub):
    put("m-Q8_0.gguf", MODEL, repo="o/r")
    with ox.load("hf:o/r", num_threads=1) as engine:
        path = engine.config.model_path
    assert path.endswith("/snapshots/c0ffee0000000000000000000000000000000000/m-Q8_0.gguf")
    Hub.requests.clear()
    for name in ("hf:o/r", "hf:o/r:Q8_0", "o/r:Q8_0", "https://huggingface.co/o/r/blob/main/m-Q8_0.gguf", "o/r"):
        with ox.load(name, num_threads=1) as engine:
            assert engine.config.model_path == path
    assert Hub.requests == []  # what is here is used as it is


def test_mappers_by_name(stored):
    from oxillama.data import Generate

    pytest.importorskip("pyarrow")
    import pyarrow

    table = pyarrow.table({"text": ["Once"]})
    for name in ("stories", "~/home.gguf"):
        mapper = Generate(name, prompt="text", max_tokens=2, engine={"num_threads": 1})
        assert mapper(table).num_rows == 1


def test_compat_by_name(stored):
    import oxillama.compat as llama_cpp

    with llama_cpp.Llama("stories", n_ctx=64, n_threads=1) as model:
        assert model.model_path == str(stored / "store/stories-Q8_0.gguf")
    with pytest.raises(ValueError, match=r"Model path does not exist: .*storys.*; the nearest: stories-Q8_0"):
        llama_cpp.Llama("storys", n_ctx=64)


def test_compat_from_the_hub(near_hub):
    import oxillama.compat as llama_cpp

    put("m-Q8_0.gguf", MODEL, repo="o/r")
    for repo_id in ("hf:o/r", "o/r:Q8_0", "https://huggingface.co/o/r"):
        with llama_cpp.Llama.from_pretrained(repo_id, None, n_ctx=64, n_threads=1) as model:
            assert model.model_path.endswith("m-Q8_0.gguf")
    with llama_cpp.Llama(model_path="hf:o/r", n_ctx=64, n_threads=1) as model:
        assert model.model_path.endswith("m-Q8_0.gguf")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("storys", r"model_path storys: there is no such file, and no model of that name in .*/store, the Hub's cache "
         r"or Ollama's folder; the nearest: stories-Q8_0; to fetch one: oxillama pull hf:OWNER/REPO$"),
        ("llama3.2", r"; to fetch it: oxillama pull hf:bartowski/Llama-3.2-3B-Instruct-GGUF$"),
        ("o/r:Q8_0", r"; to fetch it: oxillama pull hf:o/r:Q8_0$"),
        ("o/r", r"; to fetch it: oxillama pull hf:o/r$"),
        ("~/hom.gguf", r"hom\.gguf: there is no such file; did you mean .*/home\.gguf\?$"),
    ],
)  # fmt: skip
def test_names_of_nothing(stored, name, message):
    with pytest.raises(ModelNotFoundError, match=message):
        ox.load(name)


@pytest.mark.parametrize("name", ["a\0b", "hf:a\0/b", "hf:../..", "hf:o/r/../x.gguf", "https://evil.example/o/r"])
def test_hostile_names(stored, name):
    with pytest.raises(ConfigError):
        find_model(name)


@pytest.mark.parametrize("name", ["../../etc/passwd", "../store/../home", "a/../../home", "..", "x" * 100_000])
def test_names_lead_nowhere_else(stored, name):
    found = None
    try:
        found = find_model(name)
    except ModelNotFoundError:
        return
    assert found == name  # a path as it was given


def test_nothing_is_fetched_that_may_not_be(near_hub):
    put("m-Q8_0.gguf", MODEL, repo="o/r")
    with pytest.raises(ModelNotFoundError, match=r"hf:o/r is not on this machine: oxillama pull hf:o/r"):
        find_model("hf:o/r", fetch=False)
    assert Hub.requests == []


def test_a_link_whose_file_is_gone(near_hub):
    put("m-Q8_0.gguf", MODEL, repo="o/r")
    path = find_model("hf:o/r")
    os.unlink(os.path.realpath(path))
    with pytest.raises(ModelNotFoundError, match=r"its file is gone: .*; oxillama pull hf:o/r:Q8_0"):
        find_model("o/r")
    assert find_model("hf:o/r") == path  # fetched again


def test_what_settings_keep(stored, monkeypatch):
    monkeypatch.chdir(stored)
    assert kept_path("home.gguf") == str(stored / "home.gguf")
    assert kept_path("~/home.gguf") == str(stored / "home.gguf")
    assert kept_path("stories") == "stories"
    assert kept_path("hf:o/r") == "hf:o/r"
    assert kept_path(Path("stories")) == str(stored / "stories")
    assert is_name("stories")
    assert not is_name("store")  # a folder of that name


PIECES = (
    "hf:", "https://", "huggingface.co", "hf.co", "/", ":", "@", "..", ".", "~", "\0", "\udcff", "\n", "a", "Q4_K_M",
    ".gguf", "resolve", "main", "?", "#", "%2e", "[", "]", "é", " ", "-", "\\", "x" * 300, "latest", "o/r", "//",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=9))
def test_any_text_is_a_path_a_name_or_a_typed_error(pieces):
    text = "".join(pieces)
    for call in (
        lambda: find_model(text, fetch=False), lambda: kept_path(text), lambda: is_name(text),
        lambda: model_in_place_of_text("run", [text], None), lambda: unknown_command(text, ["run"]),
    ):  # fmt: skip
        with contextlib.suppress(ox.OxiLlamaError):
            call()
