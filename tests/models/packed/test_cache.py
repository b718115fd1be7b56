"""Cache of packed files: made once, found again, limited, and shared by processes."""

import fcntl
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import oxillama as ox
from oxillama.errors import ConfigError, LoadError
from oxillama.models.packed import Cache, notes, placing
from oxillama.models.packed import cache as packed_cache
from oxillama.models.packed.cache import cache_folder
from tests.models.packed.packing import open_runner, packed_files
from tests.offload.paged import path_of

WORKER = """
import os, sys, oxillama as ox
sys.stdin.read(1)
with ox.load(num_threads=1, packed=True) as engine:
    (source,) = engine.context.core.runner.model.mapped
    print(os.fstat(source.fd).st_ino, engine.forward_logits([1, 2, 3]).tobytes().hex()[:64])
"""


def test_processes_that_start_together_make_it_once():
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for worker in workers:
        worker.stdin.write("x")
        worker.stdin.flush()
    said = {worker.communicate(timeout=120)[0] for worker in workers}
    assert len(said) == 1
    (path,) = packed_files()
    assert int(said.pop().split()[0]) == path.stat().st_ino
    assert [p.name for p in path.parent.iterdir() if p.suffix not in (".oxpack", ".used")] == []


def test_nothing_is_read_in_full_a_second_time(monkeypatch, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(path_of("llama").read_bytes())
    wait_for_a_tick(path)
    open_runner(path)
    read = []
    digests = notes.digests
    monkeypatch.setattr(notes, "digests", lambda parts, n: read.append(len(parts)) or digests(parts, n))
    monkeypatch.setattr("oxillama.models.packed.file.digests", notes.digests)
    open_runner(path)
    assert read == []
    os.utime(path)  # the bytes are the same, but only reading them tells
    open_runner(path)
    assert len(read) == 1
    os.utime(packed_files()[0])
    open_runner(path)
    assert len(read) >= 2
    assert len(packed_files()) == 1


def wait_for_a_tick(path):
    """Until a change of the file would change its time, too: notes of younger files aren't kept."""
    while time.time_ns() - path.stat().st_ctime_ns <= notes.TICK_NS:
        time.sleep(0.01)


def test_notes_of_files_that_are_too_new_are_not_kept(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(path_of("llama").read_bytes())
    monkeypatch.setattr(notes, "TICK_NS", 1 << 60)
    monkeypatch.setattr(notes, "COARSE_TICK_NS", 1 << 60)
    open_runner(path)
    (file,) = packed_files()
    assert len(list((file.parents[1] / "notes").iterdir())) == 1  # that of the packed file, which was just written


def test_a_dead_maker_is_no_hindrance(cache):
    folder = cache / "packed"
    open_runner(path_of("llama"))
    (path,) = packed_files()
    path.unlink()
    path.with_suffix(".lock").touch()
    leftover = folder / f".{path.name}.0123456789ab.tmp"
    leftover.write_bytes(b"half of it")
    open_runner(path_of("llama"))
    assert packed_files() == [path]
    assert not leftover.exists()
    assert not path.with_suffix(".lock").exists()


def test_the_least_recently_used_go_but_none_in_use(cache, monkeypatch, caplog):
    kept = open_runner(path_of("llama"))
    (in_use,) = packed_files()
    open_runner(path_of("qwen2"))
    open_runner(path_of("gemma"))
    by_model = {Path(file.model).stem: file for file in Cache.default().files()}
    for i, name in enumerate(("llama", "qwen2", "gemma")):
        os.utime(by_model[name].path.with_suffix(".used"), (1e9 + i, 1e9 + i))
    assert {name: file.in_use for name, file in by_model.items()} == {"llama": True, "qwen2": False, "gemma": False}
    monkeypatch.setenv("OXILLAMA_CACHE_SIZE", str(sum(file.n_bytes for file in by_model.values())))
    with caplog.at_level(logging.INFO, "oxillama"):
        open_runner(path_of("phi3"))
    assert "evicted" in caplog.text
    left = {Path(file.model).stem for file in Cache.default().files()}
    assert left >= {"llama", "phi3"}
    assert "qwen2" not in left
    monkeypatch.setenv("OXILLAMA_CACHE_SIZE", "1K")
    open_runner(path_of("gemma2"))
    assert {Path(file.model).stem for file in Cache.default().files()} == {"llama", "gemma2"}
    freed, left = Cache.default().clear()
    assert freed > 0
    assert left == [in_use]
    del kept
    assert Cache.default().clear()[1] == []
    assert list((cache / "notes").iterdir()) == []


def test_use_counts_as_use():
    open_runner(path_of("llama"))
    (path,) = packed_files()
    os.utime(path.with_suffix(".used"), (1e9, 1e9))
    open_runner(path_of("llama"))
    assert path.with_suffix(".used").stat().st_mtime > 1e9


def test_a_list_tells_what_can_not_be_used(cache):
    open_runner(path_of("llama"))
    (path,) = packed_files()
    path.write_bytes(b"x" * 100)
    (file,) = Cache.default().files()
    assert file.n_bytes == 100
    assert "this is no file of packed weights" in file.model


def test_only_notes_are_cleared(tmp_path):
    stamp, folder = "a" * 40, tmp_path / "notes"
    folder.mkdir()
    ours = [folder / stamp, folder / f".{stamp}.0123456789ab.tmp"]
    others = [folder / name for name in ("diary.md", "A" * 40, "a" * 41, f".{stamp}.tmp", f"{stamp}.txt")]
    for path in (*ours, *others):
        path.write_text("x")
    (folder / ("b" * 40)).symlink_to(others[0])
    (folder / ("c" * 40)).mkdir()
    Cache(tmp_path).clear()
    assert not any(path.exists() for path in ours)
    assert sorted(p.name for p in folder.iterdir()) == sorted([p.name for p in others] + ["b" * 40, "c" * 40])


def test_odd_files_are_not_listed_and_stay(cache):
    folder = cache / "packed"
    folder.mkdir(parents=True)
    (folder / f"{'a' * 40}.oxpack").symlink_to(folder / "nowhere")
    os.mkfifo(folder / f"{'b' * 40}.oxpack")
    (folder / f"{'c' * 40}.oxpack").mkdir()
    assert Cache.default().files() == []
    assert Cache.default().clear() == (0, [])
    assert len(list(folder.iterdir())) == 3


def test_what_killed_processes_left_is_freed(cache):
    folder, key = cache / "packed", "a" * 40
    folder.mkdir(parents=True)
    names = [f".{key}.oxpack.0123456789ab.tmp", f"{key}.used", f"{key}.lock"]
    for name in (*names, "diary.used", ".diary.0123456789ab.tmp"):
        (folder / name).write_bytes(b"x" * 10)
    with open(folder / f".{key}.oxpack.ba9876543210.tmp", "wb") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        assert Cache.default().clear()[0] == 10
        assert sorted(p.name for p in folder.iterdir()) == sorted(
            ["diary.used", ".diary.0123456789ab.tmp", f".{key}.oxpack.ba9876543210.tmp"]
        )


def test_a_file_that_took_the_name_meanwhile_stays(tmp_path, monkeypatch):
    path = tmp_path / f"{'a' * 40}.oxpack"
    path.write_bytes(b"old")
    flock = fcntl.flock

    def replaced(descriptor, operation):
        flock(descriptor, operation)
        (tmp_path / "new").write_bytes(b"new")
        os.replace(tmp_path / "new", path)

    monkeypatch.setattr(fcntl, "flock", replaced)
    assert packed_cache.remove(path) == 0
    assert path.read_bytes() == b"new"


def test_no_eviction_takes_a_file_before_its_maker_opens_it(monkeypatch):
    opened = placing.PackedFile
    freed = []

    def late(path, owners):
        if path.exists():
            freed.append(Cache.default().clear()[0])
        return opened(path, owners)

    monkeypatch.setattr(placing, "PackedFile", late)
    kept = open_runner(path_of("llama"))
    assert freed == [0]
    assert len(packed_files()) == 1
    del kept


def test_a_stopped_packer_is_not_waited_for_for_ever(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(packed_cache, "PATIENCE", 0.05)
    monkeypatch.setattr(packed_cache, "STALLED", 0.3)
    cache, key = Cache(tmp_path), "a" * 40
    polls = []

    def grow():
        polls.append(1)
        if len(polls) <= 10:
            with open(cache.folder / f".{key}.oxpack.0123456789ab.tmp", "ab") as f:
                f.write(b"x")

    with (
        cache.lock(key, lambda: None),
        caplog.at_level(logging.WARNING, "oxillama"),
        pytest.raises(LoadError, match=rf"{key}\.lock: the process that packs this model has written nothing"),
        cache.lock(key, grow),
    ):
        pass
    assert len(polls) > 10
    assert caplog.text.count("waiting for the process that packs") == 1


def test_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("OXILLAMA_CACHE", "~/own")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("OXILLAMA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "oxillama"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "oxillama"


def test_a_cache_that_can_not_be_is_refused_by_name(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OXILLAMA_CACHE", str(tmp_path / "file"))
    with pytest.raises(LoadError, match="set OXILLAMA_CACHE to a folder with room"):
        open_runner(path_of("llama"))
    assert open_runner(path_of("llama"), placing.pack_model(path_of("llama"), tmp_path / "x.oxpack", 1))
    monkeypatch.setenv("OXILLAMA_CACHE_SIZE", "many")
    with pytest.raises(ConfigError, match="OXILLAMA_CACHE_SIZE must be bytes"):
        open_runner(path_of("llama"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"packed": 1}, "packed must be True, False or a path, not int"),
        ({"packed": True, "repack": False}, "packed must be left out with repack=False"),
    ],
)
def test_settings_that_can_not_be(fields, message):
    with pytest.raises(ConfigError, match=message):
        ox.EngineConfig(**fields)
