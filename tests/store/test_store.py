"""The store: what is found where, under which names, and what removal leaves alone."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError
from oxillama.store.entries import cached_entries
from oxillama.store.names import read_hub_name
from oxillama.store.places import hub_cache, ollama_folders, store_folder
from oxillama.store.pull import pull
from oxillama.store.removal import remove
from oxillama.store.store import Store, nearest_names
from tests.hub import Hub, put

MODEL = Path(shipped_model()).read_bytes()


def by_hand(places, name):
    path = places / "store" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(shipped_model(), path)
    return path


def manifest(places, name, digest="a" * 64, host="registry.ollama.ai", layers=None):
    model, _, tag = name.partition(":")
    place = places / "ollama" / "manifests" / host / model / tag
    place.parent.mkdir(parents=True, exist_ok=True)
    kind = "application/vnd.ollama.image.model"
    place.write_text(json.dumps({"layers": layers or [{"mediaType": kind, "digest": f"sha256:{digest}", "size": 1}]}))
    blob = places / "ollama" / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(shipped_model(), blob)
    return blob


def names():
    return [entry.name for entry in Store().entries()]


def test_folders(monkeypatch, tmp_path):
    for name in ("OXILLAMA_MODELS", "XDG_DATA_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store_folder() == f"{tmp_path}/.local/share/oxillama/models"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert store_folder() == f"{tmp_path}/.local/share/oxillama/models"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert store_folder() == "/data/oxillama/models"
    monkeypatch.setenv("OXILLAMA_MODELS", "~/m")
    assert store_folder() == f"{tmp_path}/m"
    monkeypatch.setenv("HF_HOME", "~/hf")
    assert hub_cache() == f"{tmp_path}/hf/hub"
    monkeypatch.setenv("HF_HUB_CACHE", "/cache")
    assert hub_cache() == "/cache"
    monkeypatch.setenv("OLLAMA_MODELS", "~/o")
    assert ollama_folders() == [f"{tmp_path}/o"]


SCRIPT = """
import huggingface_hub.constants
from oxillama.store.places import hub_cache
assert hub_cache() == huggingface_hub.constants.HF_HUB_CACHE, (hub_cache(), huggingface_hub.constants.HF_HUB_CACHE)
"""


@pytest.mark.parametrize("variables", [
    {}, {"HF_HOME": "~/hf"}, {"HF_HOME": "$HOME/hf"}, {"HF_HUB_CACHE": "/cache", "HF_HOME": "/hf"},
    {"XDG_CACHE_HOME": "/xdg"}, {"HUGGINGFACE_HUB_CACHE": "/old"},
])  # fmt: skip
def test_the_cache_is_the_one_of_the_hubs_library(variables, tmp_path):
    known = {n: v for n, v in os.environ.items() if not n.startswith(("HF_", "HUGGINGFACE_", "XDG_"))}
    env = known | {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)} | variables
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_nothing_is_there(places):
    assert Store().entries() == []
    assert Store().find("anything") is None
    assert Store().find("") is None
    assert os.listdir(places) == []  # looking makes nothing


def test_files_put_there_by_hand(places):
    by_hand(places, "one-Q4_K_M.gguf")
    by_hand(places, "sub/Two.GGUF")
    by_hand(places, ".hidden.gguf")
    (places / "store" / "notes.txt").write_text("")
    (places / "store" / "gone.gguf").symlink_to(places / "nowhere.gguf")
    os.mkfifo(places / "store" / "pipe.gguf")
    elsewhere = places / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(shipped_model(), elsewhere / "far.gguf")
    (places / "store" / "linked").symlink_to(elsewhere)
    (elsewhere / "round").symlink_to(places / "store")
    assert names() == ["gone", "linked/far", "one-Q4_K_M", "sub/Two"]
    for name in ("one-Q4_K_M", "ONE-q4_k_m.gguf", "one", "one:q4_k_m"):
        assert Store().find(name).path == str(places / "store/one-Q4_K_M.gguf")
    for name in ("sub/Two", "two", "sub/two.gguf"):
        assert Store().find(name).path == str(places / "store/sub/Two.GGUF")
    assert "its file is gone" in Store().find("gone").fault


def test_names_of_several_models(places):
    by_hand(places, "a/m.gguf")
    by_hand(places, "b/m-extra.gguf")
    by_hand(places, "b/m.gguf")
    with pytest.raises(ConfigError, match=r"'m' is a name of several models: a/m, b/m; give one of them whole"):
        Store().find("m")
    assert Store().find("b/m").name == "b/m"


def test_ollamas_models(places):
    blob = manifest(places, "library/llama3.2:latest")
    manifest(places, "library/llama3.2:1b", "b" * 64)
    manifest(places, "user/own:q4", "c" * 64)
    manifest(places, "bartowski/X-GGUF:Q4_K_M", "d" * 64, "hf.co")
    assert names() == ["bartowski/X-GGUF:Q4_K_M", "llama3.2:1b", "llama3.2:latest", "user/own:q4"] or names() == [
        "hf.co/bartowski/X-GGUF:Q4_K_M", "llama3.2:1b", "llama3.2:latest", "user/own:q4",
    ]  # fmt: skip
    for name in ("llama3.2", "llama3.2:latest", "Llama3.2", "library/llama3.2"):
        assert Store().find(name).path == str(blob)
    assert Store().find("llama3.2:1b").path.endswith("b" * 64)
    with pytest.raises(ConfigError, match=r"belongs to Ollama: ollama rm llama3.2:1b"):
        remove(Store().find("llama3.2:1b"), Store())
    assert blob.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"layers": 5}', '{"layers": [5, {}]}', "[" * 100_000, "x" * (2 << 20),
     '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../../etc/passwd"}]}',
     '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 5}]}'],
)  # fmt: skip
def test_manifests_that_are_none(places, text):
    place = places / "ollama/manifests/registry.ollama.ai/library/x/latest"
    place.parent.mkdir(parents=True)
    place.write_text(text)
    assert names() == []


def test_adapters_of_ollama_are_no_models_alone(places):
    kinds = ("application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter")
    layers = [{"mediaType": kind, "digest": "sha256:" + "a" * 64} for kind in kinds]
    manifest(places, "library/x:latest", layers=layers)
    assert "adapters" in Store().find("x").fault


def in_cache(places, repo, name, data, commit="1" * 40, ref=None):
    root = places / "hub" / f"models--{repo.replace('/', '--')}"
    blob = root / "blobs" / hashlib.sha256(data).hexdigest()
    link = root / "snapshots" / commit / name
    for folder in (blob.parent, link.parent, root / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    link.symlink_to(os.path.relpath(blob, link.parent))
    if ref is not None:
        (root / "refs" / ref).write_text(commit)
    return link


def test_what_other_programs_fetched(places):
    in_cache(places, "o/r-GGUF", "m-Q4_K_M.gguf", MODEL)
    newest = in_cache(places, "o/r-GGUF", "m-Q4_K_M.gguf", MODEL + b"x", "2" * 40, "main")
    in_cache(places, "o/r-GGUF", "config.json", b"{}")
    assert [(entry.name, entry.path, entry.source) for entry in cached_entries()] == [
        ("o/r-GGUF:Q4_K_M", str(newest), "hub")
    ]
    with pytest.raises(ConfigError, match=r"put into the Hub's cache by another program, and stays: hf cache rm"):
        remove(Store().find("o/r-GGUF"), Store())
    assert newest.exists()


def test_what_was_pulled_is_removed(near_hub):
    put("m-Q4_K_M.gguf", MODEL, repo="o/r")
    put("m-Q8_0.gguf", MODEL + b"x", repo="o/r")
    for quant in ("Q4_K_M", "Q8_0"):
        pull(read_hub_name(f"hf:o/r:{quant}"), Store())
    assert remove(Store().find("o/r:Q8_0"), Store()) == ["removed o/r:Q8_0: 2.7 MiB"]
    assert names() == ["o/r:Q4_K_M"]
    assert len(os.listdir(near_hub / "hub/models--o--r/blobs")) == 1
    remove(Store().find("o/r:Q4_K_M"), Store())
    assert names() == []
    left = [path for folder in ("store", "hub/models--o--r") for path in (near_hub / folder).rglob("*")]
    assert [path for path in left if path.is_file() or path.is_symlink()] == []


def test_what_was_there_before_stays(near_hub):
    put("m-Q4_K_M.gguf", MODEL, repo="o/r")
    link = in_cache(near_hub, "o/r", "m-Q4_K_M.gguf", MODEL, "c0ffee" + "0" * 34, "main")
    pull(read_hub_name("hf:o/r"), Store())
    assert [one for one in Hub.requests if one.startswith("GET") and "/api/" not in one] == []
    said = remove(Store().find("o/r"), Store())
    assert said == ["removed o/r:Q4_K_M from the store",
                    "its file was in the Hub's cache before, and stays there: hf cache rm model/o/r"]  # fmt: skip
    assert link.read_bytes() == MODEL


def test_bytes_that_another_revision_has_stay(near_hub):
    put("m-Q4_K_M.gguf", MODEL, repo="o/r")
    pull(read_hub_name("hf:o/r"), Store())
    other = near_hub / "hub/models--o--r/snapshots" / ("2" * 40) / "same.gguf"
    other.parent.mkdir()
    other.symlink_to(os.path.realpath(Store().find("o/r").path))
    remove(Store().find("o/r:Q4_K_M"), Store())
    assert other.read_bytes() == MODEL


def test_older_versions_that_were_pulled_go_too(near_hub):
    put("m-Q4_K_M.gguf", MODEL, repo="o/r")
    put("m-Q4_K_M.gguf", MODEL + b"x", repo="o/r", revision="other")
    for name in ("hf:o/r:Q4_K_M", "hf:o/r:Q4_K_M@other"):
        pull(read_hub_name(name), Store())
    assert remove(Store().find("o/r"), Store()) == ["removed o/r:Q4_K_M: 5.4 MiB"]
    assert not list((near_hub / "hub/models--o--r").rglob("*.gguf"))


def test_links_go_and_their_files_stay(places):
    target = places / "mine.gguf"
    shutil.copy(shipped_model(), target)
    (places / "store").mkdir()
    (places / "store" / "m.gguf").symlink_to(target)
    assert remove(Store().find("m"), Store()) == ["removed the link m; the file that it leads to stays"]
    assert target.exists()
    assert names() == []


def test_a_link_that_leads_out_of_the_cache_takes_nothing_with_it(near_hub):
    """A cache that was changed by hand: what its links lead to is no file of the store's."""
    put("m-Q4_K_M.gguf", MODEL, repo="o/r")
    path = pull(read_hub_name("hf:o/r"), Store()).path
    precious = near_hub / "precious"
    precious.write_bytes(MODEL)
    Store().note_fetched("precious")
    os.unlink(path)
    os.symlink(precious, path)
    remove(Store().find("o/r"), Store())
    assert precious.read_bytes() == MODEL


def test_three_nearest(places):
    for name in ("llama-3.2-1b-Q4_K_M", "llama-3.2-3b-Q4_K_M", "llama-3.1-8b-Q4_K_M", "qwen-7b", "llama-2-7b"):
        by_hand(places, f"{name}.gguf")
    near = nearest_names(Store().entries(), "llama-3.2-1b-Q4_K")
    assert near[0] == "llama-3.2-1b-Q4_K_M"
    assert len(near) == 3
    assert nearest_names(Store().entries(), "zzz") == []
    assert nearest_names(Store().entries(), "x" * 5000) == []


def test_a_sparse_file_of_60_gb_is_not_read(places):
    path = by_hand(places, "huge.gguf")
    os.truncate(path, 60 << 30)
    entry = Store().find("huge")
    assert entry.n_bytes == 60 << 30
    from oxillama.cli.models import row_of

    row = row_of(entry)
    assert (row.runs, row.architecture) == (True, "llama")
