"""Files named by an untrusted snapshot are neither fetched, opened nor loaded, unless they are what it says."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import oxillama as ox
from oxillama.core import loading
from oxillama.errors import ConfigError, ModelNotFoundError, SnapshotFileError, SnapshotMismatchError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.snapshot.format.writer import packed
from tests.fuzz.targets.snapshot_changes import unpacked
from tests.hub import Hub
from tests.snapshot.models import load, path_of

HUB = {"repo_id": "owner/model", "filename": "sub/tiny.gguf", "revision": "c0ffee"}
WAYS = ("Engine", "bytes", "async", "async bytes", "snapshot.load", "snapshot.loads", "speculative", "draft")


@pytest.fixture(scope="module")
def saved():
    with load("llama") as engine:
        engine.prefill([1, 2, 3])
        return engine.snapshot_bytes()


@pytest.fixture(scope="module")
def speculative():
    with ox.SpeculativeEngine(path_of("llama"), path_of("llama"), 3, 3) as spec:
        spec.engine.prefill([1, 2, 3])
        return spec.snapshot_bytes()


def changed(data, change):
    """The same file with other things said in its description."""
    whole, squeeze = unpacked(data)
    change(whole.state)
    return packed(whole, squeeze=squeeze)


def naming(data, **values):
    """With other values for its model."""
    return changed(data, lambda state: state["model"].update(values))


def of_both(data, part, **values):
    """The same for one part of a speculative engine's."""
    whole, _ = unpacked(data)
    inner = naming(whole.tensors[part].array.tobytes(), **values)
    whole.tensors[part].data = type(whole.tensors[part].data)(len(inner), "u1")
    whole.tensors[part].data[:] = bytearray(inner)
    return packed(whole)


def restore(way, data, folder, **options):
    """Restores by each spelling, and closes what comes of it."""
    path = folder / "session"
    path.write_bytes(data)
    calls = {
        "Engine": lambda: ox.Engine.restore(path, **options),
        "bytes": lambda: ox.Engine.restore_bytes(data, **options),
        "snapshot.load": lambda: ox.snapshot.load(path, **options),
        "snapshot.loads": lambda: ox.snapshot.loads(data, **options),
        "speculative": lambda: ox.SpeculativeEngine.restore(path, **options),
        "draft": lambda: ox.SpeculativeEngine.restore_bytes(data, **options),
    }
    if way in calls:
        with calls[way]() as engine:
            return type(engine)

    async def run():
        method = ox.AsyncEngine.restore if way == "async" else ox.AsyncEngine.restore_bytes
        async with await method(path if way == "async" else data, **options) as engine:
            return type(engine)

    return asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
def test_the_hub_is_used_if_allow_download_says_so(way, saved, speculative, tmp_path, monkeypatch):
    asked, there = [], False

    def download(repo_id, filename, *, revision, cached):
        asked.append((repo_id, filename, revision, cached))
        if cached and not there:
            raise ModelNotFoundError("not in the local cache")
        return path_of("llama")

    monkeypatch.setattr("oxillama.hub.download", download)
    gone = {"path": "/nowhere/tiny.gguf", "hub": HUB}
    parts = {"speculative": "target", "draft": "draft.0"}
    data = of_both(speculative, parts[way], **gone) if way in parts else naming(saved, **gone)
    name = "draft" if way == "draft" else "model_path"
    said = (
        rf"its model is not at '/nowhere/tiny.gguf' any more, and 'sub/tiny.gguf' of 'owner/model' at 'c0ffee' is not "
        rf"in the Hub's local cache: give {name}, or allow_download=True to fetch it from the Hub"
    )
    with pytest.raises(SnapshotFileError, match=said):
        restore(way, data, tmp_path)
    assert asked == [("owner/model", "sub/tiny.gguf", "c0ffee", True)]
    asked.clear()
    restore(way, data, tmp_path, allow_download=True)
    assert asked == [("owner/model", "sub/tiny.gguf", "c0ffee", False)]
    asked.clear()
    there = True
    restore(way, data, tmp_path)
    assert asked == [("owner/model", "sub/tiny.gguf", "c0ffee", True)]
    for bad in (1, None, "yes"):
        with pytest.raises(ConfigError, match="allow_download must be True or False"):
            restore(way, data, tmp_path, allow_download=bad)


SCRIPT = """
import sys
import oxillama as ox
try:
    ox.Engine.restore(sys.argv[1], allow_download=sys.argv[2] == "1").close()
    print("restored")
except ox.OxiLlamaError as error:
    print(type(error).__name__, error)
"""


def test_the_network_is_not_used_by_default(hub, tmp_path):
    """Of a stand-in for the Hub: not once, though there is a token."""
    model = loading.shipped_model()
    with ox.load(model) as engine:
        engine.prefill([1, 2, 3])
        data = naming(engine.snapshot_bytes(), path="/gone", hub=HUB | {"filename": "tiny.gguf", "revision": "main"})
    (tmp_path / "s").write_bytes(data)
    found = {}
    for allowed in ("0", "1", "0"):
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
        env |= {
            "HF_ENDPOINT": hub,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_TOKEN": "hf_secret",
            "HF_HUB_DISABLE_XET": "1",
        }
        env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "s"), allowed]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
        found.setdefault(allowed, []).append((done.stdout.strip(), list(Hub.requests)))
        Hub.requests.clear()
    refused, cached = found["0"]
    assert refused[0].startswith("SnapshotFileError")
    assert refused[1] == []
    assert found["1"][0][0] == "restored"
    assert found["1"][0][1]
    assert cached == ("restored", [])


@pytest.mark.parametrize(
    ("hub", "error", "said"),
    [
        (HUB | {"repo_id": "../../x"}, SnapshotFileError, "says of the Hub can't be .*repo_id must.*give model_path"),
        (HUB | {"filename": "../passwd"}, SnapshotFileError, "filename must be a file's path"),
        (HUB | {"revision": "../../x"}, ox.SnapshotDamagedError, "revision must be a commit"),
        (HUB | {"revision": ".."}, ox.SnapshotDamagedError, "revision must be a commit"),
        (HUB | {"revision": None}, ox.SnapshotDamagedError, "revision must be text"),
        ({}, ox.SnapshotDamagedError, "repo_id must be text"),
        (None, SnapshotFileError, "its model is not at '/gone' any more: give model_path"),
    ],
)  # fmt: skip
def test_invalid_names_of_the_hub_are_refused(saved, hub, error, said):
    for allowed in (False, True):
        with pytest.raises(error, match=said):
            ox.Engine.restore_bytes(naming(saved, path="/gone", hub=hub), allow_download=allowed)


@pytest.fixture
def places(tmp_path):
    """Paths that a stranger may name, by kind."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "notes").write_text("dear diary")
    (tmp_path / "link").symlink_to("/dev/zero")
    return {
        "pipe": tmp_path / "pipe", "device": "/dev/zero", "link": tmp_path / "link", "folder": tmp_path,
        "missing": tmp_path / "missing", "empty": tmp_path / "empty", "text": tmp_path / "notes", "odd": "a\0b",
        "model": path_of("gemma3"),
    }  # fmt: skip


@pytest.fixture
def unloaded(monkeypatch):
    """Nothing is loaded, and nothing opened but regular files."""

    def opened(path, *args, **options):
        assert isinstance(path, int) or options.get("dir_fd") or not Path(path).exists() or Path(path).is_file()
        return real(path, *args, **options)

    def loaded(config):
        raise AssertionError(f"{config.model_path} was loaded")

    real = os.open
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr("oxillama.engine.engine.load_parts", loaded)


KINDS = ("pipe", "device", "link", "folder", "missing", "odd")


@pytest.mark.parametrize("kind", [*KINDS, "empty", "text", "model"])
def test_named_files_that_are_no_models_are_refused(saved, speculative, places, kind, unloaded):
    path = str(places[kind])
    if kind in KINDS:
        error, said = SnapshotFileError, "its model is not at .* any more: give model_path"
    else:
        error, said = SnapshotMismatchError, "it is of another model: (file_size is 577888|head_hash is .*) there"
    with pytest.raises(error, match=said):
        ox.Engine.restore_bytes(naming(saved, path=path))
    with pytest.raises(error, match=said.replace("model_path", "draft")):
        ox.SpeculativeEngine.restore_bytes(of_both(speculative, "draft.0", path=path))


@pytest.mark.parametrize("kind", [*KINDS, "text", "model"])
def test_named_files_that_are_no_tokenizers_are_refused(saved, places, kind, unloaded):
    told = ModelFingerprint.of(path_of("llama")).state()
    data = naming(saved, tokenizer_path=str(places[kind]), tokenizer=told)
    said = (
        "tokenizer is not at .* any more: give tokenizer_path" if kind in KINDS else "tokenizer_path: it is of another"
    )
    with pytest.raises((SnapshotFileError, SnapshotMismatchError), match=said):
        ox.Engine.restore_bytes(data)


@pytest.mark.parametrize("kind", [*KINDS, "empty", "text", "model"])
def test_named_files_that_are_no_adapters_are_refused(saved, places, kind):
    files = {"files": {"ab" * 32: str(places[kind])}, "named": {"x": "ab" * 32}, "pushed": []}
    data = changed(saved, lambda state: state.update(adapters=files))
    with pytest.raises(SnapshotMismatchError, match=r"its adapter .*give adapters=\[...\]"):
        ox.Engine.restore_bytes(data)


def test_another_model_of_the_same_size_is_refused(saved, tmp_path, unloaded):
    data = bytearray(Path(path_of("llama")).read_bytes())
    data[-5] ^= 1
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(SnapshotMismatchError, match="head_hash"):
        ox.Engine.restore_bytes(naming(saved, path=str(tmp_path / "other.gguf")))


def test_given_files_are_used_instead_of_named_ones(saved, places):
    data = naming(saved, path=str(places["pipe"]), tokenizer_path=None, hub=HUB)
    with ox.Engine.restore_bytes(data, path_of("llama")) as engine:
        assert engine.position == 3
        with ox.Engine.restore_bytes(data, engine) as other:
            assert other.position == 3
