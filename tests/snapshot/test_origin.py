"""What a model is known by, and where it is found again."""

from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

import oxillama as ox
from oxillama.errors import SnapshotDamagedError, SnapshotMismatchError
from oxillama.snapshot.fields import Fields
from oxillama.snapshot.origin import ModelFingerprint, hub_origin
from tests.snapshot.models import load, path_of


def test_a_fingerprint():
    path = Path(path_of("llama"))
    data = path.read_bytes()
    found = ModelFingerprint.of(path)
    assert (found.file_size, found.mtime_secs) == (len(data), int(path.stat().st_mtime))
    assert found.head_hash == found.tail_hash == blake3(data).digest()
    small = ModelFingerprint.of(path, probe_size=1000)
    assert (small.head_hash, small.tail_hash) == (blake3(data[:1000]).digest(), blake3(data[-1000:]).digest())
    assert ModelFingerprint.of(data) == replace(found, mtime_secs=0)
    assert ModelFingerprint.read(Fields(found.state(), "x")) == found
    other = ModelFingerprint.of(path_of("gemma3"))
    assert other.tensor_hash != found.tensor_hash
    found.check(replace(found, mtime_secs=5), "x")
    for field in ("file_size", "head_hash", "tail_hash", "tensor_hash"):
        with pytest.raises(SnapshotMismatchError, match=f"x: it is of another model: {field} is"):
            found.check(replace(found, **{field: getattr(other, field)}), "x")
    for field in ("file_size", "head_hash"):
        with pytest.raises(SnapshotDamagedError, match=field):
            ModelFingerprint.read(Fields(found.state() | {field: "zz"}, "x"))


def test_the_cache_of_a_hub(tmp_path, monkeypatch):
    folder = tmp_path / "hub" / "models--owner--my--model" / "snapshots" / "c0ffee"
    (folder / "sub").mkdir(parents=True)
    path = folder / "sub" / "tiny.gguf"
    path.write_bytes(Path(path_of("llama")).read_bytes())
    wanted = {"repo_id": "owner/my--model", "revision": "c0ffee", "filename": "sub/tiny.gguf"}
    assert hub_origin(str(path)) == wanted
    assert hub_origin(str(tmp_path / "models--a--b" / "file")) is None
    assert hub_origin(None) is None
    with ox.load(path) as engine:
        engine.prefill([1, 2, 3])
        saved = engine.snapshot_bytes()
    assert ox.snapshot.snapshot_info(saved).hub == wanted
    path.unlink()
    asked = []

    def download(repo_id, filename, *, revision):
        asked.append((repo_id, filename, revision))
        return path_of("llama")

    monkeypatch.setattr("oxillama.hub.download", download)
    with ox.Engine.restore_bytes(saved) as engine:
        assert engine.position == 3
    assert asked == [("owner/my--model", "sub/tiny.gguf", "c0ffee")]


def test_another_tokenizer(tmp_path):
    path = tmp_path / "tokenizer.gguf"
    path.write_bytes(Path(path_of("llama")).read_bytes())
    with ox.load(path_of("llama"), tokenizer_path=path) as engine, load("llama") as other:
        engine.prefill([1, 2, 3])
        saved = engine.snapshot_bytes()
        with pytest.raises(SnapshotMismatchError, match="of an engine with a tokenizer_path"):
            other.resume(saved)
        with pytest.raises(SnapshotMismatchError, match="of an engine without a tokenizer_path"):
            engine.resume(other.snapshot_bytes())
        assert ox.Engine.restore_bytes(saved).config.tokenizer_path == str(path)
        third = ox.load(path_of("llama"), tokenizer_path=path_of("gemma3"))
        with pytest.raises(SnapshotMismatchError, match="tokenizer_path: it is of another model"):
            third.resume(saved)
