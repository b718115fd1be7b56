"""Fingerprints of models, and the files and hub origins that they identify."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

import oxillama as ox
from oxillama._util.json_fields import Fields
from oxillama.errors import SnapshotDamagedError, SnapshotMismatchError
from oxillama.gguf import fingerprint as origin
from oxillama.gguf.fingerprint import ModelFingerprint, hub_origin
from tests.fakes import snapshots_of
from tests.snapshot.models import load, path_of


def test_a_fingerprint_has_size_and_hashes():
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


def test_files_in_the_cache_of_the_hub_are_recognised(tmp_path, monkeypatch):
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

    def download(repo_id, filename, *, revision, cached):
        asked.append((repo_id, filename, revision, cached))
        return path_of("llama")

    monkeypatch.setattr("oxillama.hub.download", download)
    with ox.Engine.restore_bytes(saved) as engine:
        assert engine.position == 3
    assert asked == [("owner/my--model", "sub/tiny.gguf", "c0ffee", True)]


def test_another_tokenizer_is_refused(tmp_path):
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


def copy_of(tmp_path, name="llama"):
    path = tmp_path / "model.gguf"
    path.write_bytes(Path(path_of(name)).read_bytes())
    return path


def test_a_fingerprint_is_computed_when_first_used(tmp_path, monkeypatch):
    """Neither by loading nor by generating; and once."""
    digests = []

    def digest(*args):
        digests.append(args)
        return found(*args)

    found = origin._digest
    monkeypatch.setattr(origin, "_digest", digest)
    with ox.load(path_of("llama"), tokenizer_path=copy_of(tmp_path)) as engine:
        engine.generate([3, 4, 5], max_tokens=4)
        assert not digests
        engine.prefill([3, 4])
        saved = engine.snapshot_bytes()
        assert len(digests) == 4  # head and tail of both
        engine.snapshot_bytes()
        engine.resume(saved).close()
        assert len(digests) == 4
    assert ox.snapshot.snapshot_info(saved).fingerprint == ModelFingerprint.of(path_of("llama"))
    with ox.load(Path(path_of("llama")).read_bytes()) as engine:  # of what is in memory at once: it isn't kept for this
        assert len(digests) == 8
        assert not snapshots_of(engine).identity._ends


@pytest.mark.parametrize("repack", [True, False])
def test_a_fingerprint_is_that_of_the_loaded_file(tmp_path, repack):
    """Whatever has its name when it is first wanted."""
    path = copy_of(tmp_path)
    wanted = ModelFingerprint.of(path)
    for replace_it in (lambda other: other.replace(path), lambda other: path.unlink()):
        copy_of(tmp_path)
        with ox.load(path, repack=repack) as engine:
            other = tmp_path / "other"
            other.write_bytes(Path(path_of("gemma3")).read_bytes())
            replace_it(other)
            engine.prefill([3, 4, 5])
            saved = engine.snapshot_bytes()
            assert replace(ox.snapshot.snapshot_info(saved).fingerprint, mtime_secs=wanted.mtime_secs) == wanted


@pytest.mark.parametrize("change", ["written", "cut off", "longer"])
def test_a_changed_file_has_no_fingerprint(tmp_path, change):
    path = copy_of(tmp_path)
    with load("llama") as good:
        good.prefill([3, 4, 5])
        saved = good.snapshot_bytes()
    with ox.load(path) as engine:
        data = path.read_bytes()
        with path.open("r+b") as file:
            if change == "written":
                file.seek(len(data) - 5)
                file.write(b"\0\1\2")
            else:
                file.truncate(len(data) + (-100 if change == "cut off" else 100))
        os.utime(path, ns=(1, 1))  # a change shows by the time, whatever the clock's steps
        said = "the file (was written to|had .* bytes) .*load the model again"
        for use in (engine.snapshot_bytes, lambda: engine.resume(saved), lambda: engine.snapshot(tmp_path / "x")):
            with pytest.raises(ox.ModelFileError, match=said):
                use()
        assert not (tmp_path / "x").exists()


def test_a_forked_child_computes_its_own_fingerprint(tmp_path):
    path = copy_of(tmp_path)
    with ox.load(path) as engine:
        wanted = ModelFingerprint.of(path)
        child = os.fork()
        if not child:
            os._exit(int(snapshots_of(engine).fingerprint != wanted))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert snapshots_of(engine).fingerprint == wanted
