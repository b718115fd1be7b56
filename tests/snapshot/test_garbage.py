"""Garbage collection of a folder removes our blocks and temporary files, and no foreign files."""

import fcntl
import os
import socket
import stat

import pytest

import oxillama as ox
from oxillama.errors import SnapshotFileError
from oxillama.gguf.output import atomic_file
from oxillama.snapshot.format import block_store as blocks
from oxillama.snapshot.format.block_garbage import collect_garbage
from tests.snapshot.models import load, tokens_of

HEX = "0123456789abcdef" * 3 + "0123456789abcd"  # 62 digits, as of a block's file
TEMPORARY = ".session.0123456789ab.tmp"


@pytest.fixture(scope="module")
def engine():
    with load("llama") as engine:
        engine.prefill(tokens_of(engine, 130))
        yield engine


def tree(*folders):
    """All that is there, links not followed: kind, links and contents by path."""
    found = {}
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            info = path.lstat()
            kind = stat.S_IFMT(info.st_mode)
            data = path.read_bytes() if kind == stat.S_IFREG else os.readlink(path) if kind == stat.S_IFLNK else b""
            found[path] = kind, info.st_nlink if kind == stat.S_IFREG else 0, data
    return found


def populated(folder):
    """A foreign folder, with names like ours."""
    folder.mkdir()
    for name in ("picture.jpg", HEX, TEMPORARY, "lock"):
        (folder / name).write_bytes(b"of a foreign one")
    (folder / "ab").mkdir()
    (folder / "ab" / HEX).write_bytes(b"too")
    return folder


def look_alikes(folder, names, outside, linked):
    """Under each name what is no regular file of one name: some of every kind."""
    makers = [
        lambda path: path.symlink_to(outside / HEX),
        lambda path: path.symlink_to(outside),
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to(path.name),
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: os.link(linked, path),
        bound,
    ]
    assert len(names) == len(makers)
    for name, make in zip(names, makers, strict=True):
        make(folder / name)


def bound(path):
    here = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}"[:107])
    os.close(here)


def strangers(folder, outside):
    """Files of every kind in a folder of snapshots with blocks, none of which is to go."""
    linked = outside / "linked"
    linked.write_bytes(b"has other names")
    own = folder / "blocks"
    eight = [f"{i}" + HEX[1:] for i in range(1, 9)]
    (folder / "picture.jpg").write_bytes(b"a picture")
    (folder / "photos").mkdir()
    (folder / "photos" / TEMPORARY).write_bytes(b"in another folder")
    (folder / "away").symlink_to(outside)
    look_alikes(folder, [f".s.{i}123456789ab.tmp" for i in range(8)], outside, linked)
    for name in (
        ".s.0123456789AB.tmp",
        ".s.0123456789.tmp",
        "s.0123456789ab.tmp",
        "..0123456789ab.tmp",
        ".s.0123456789ab.tmp~",
    ):
        (folder / name).write_bytes(b"nearly")
    for name in ("thesis.tex", "abc", "a", "zz", HEX, TEMPORARY, "lock2"):
        (own / name).write_bytes(b"among the blocks")
    for name in ("photos", "AB", "abcd", "ab", "cd"):
        (own / name).mkdir()
        for inner in (
            "picture.jpg",
            TEMPORARY,
            HEX.upper(),
            HEX[1:],
            HEX + "0",
            HEX + ".jpg",
            f"{HEX} ",
            f"{HEX}\n",
            ".hidden",
        ):
            (own / name / inner).write_bytes(b"a picture")
        (own / name / "deeper").mkdir()
        (own / name / "deeper" / HEX).write_bytes(b"deeper")
    for name in ("photos", "AB", "abcd"):
        (own / name / HEX).write_bytes(b"not in a folder of ours")
    (own / "ee").symlink_to(outside)
    (own / "ef").symlink_to(outside / "ab")
    (own / "ff").mkdir()  # empty, and so of unknown making
    look_alikes(own / "cd", eight, outside, linked)
    look_alikes(own / "ab", [f".{HEX}.{i}123456789ab.tmp" for i in range(8)], outside, linked)


@pytest.fixture
def folder(engine, tmp_path):
    """With a snapshot, two blocks that it needs, and garbage of ours: its size."""
    folder = tmp_path / "saves"
    folder.mkdir()
    engine.snapshot(folder / "kept", shared=True)
    return folder


def test_foreign_files_stay(engine, folder, tmp_path, caplog):
    outside = populated(tmp_path / "outside")
    strangers(folder, outside)
    own = folder / "blocks"
    (own / "12").mkdir()
    before = tree(folder, outside)
    garbage = [own / "12" / HEX, own / "cd" / HEX, own / "cd" / f".{HEX}.0123456789ac.tmp", folder / TEMPORARY]
    for path in garbage:
        path.write_bytes(b"rubbish")
    assert collect_garbage(folder) == 7 * len(garbage)
    assert tree(folder, outside) == before
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith(f"{own}: ")
    assert "'AB', 'a'" in warning
    engine.resume(folder / "kept").close()
    (folder / "kept").unlink()
    assert collect_garbage(folder) > 0
    assert collect_garbage(folder) == 0
    gone = [path for path in before if not os.path.lexists(path) and path != folder / "kept"]
    assert len(gone) == 2  # the blocks, and no folder
    assert all(len(path.name) == 62 and path.parent.parent == own for path in gone)


def test_a_temporary_file_that_is_being_written_stays(folder):
    with atomic_file(folder / "session") as f:
        f.write(b"half of it")
        assert collect_garbage(folder) == 0
    assert (folder / "session").read_bytes() == b"half of it"


@pytest.mark.parametrize("name", ["blocks", "lock"])
def test_links_in_the_place_of_our_files_are_not_followed(engine, tmp_path, name):
    """Neither collecting nor saving follows them, to remove or to make anything elsewhere."""
    outside, folder = populated(tmp_path / "outside"), tmp_path / "saves"
    folder.mkdir()
    for target in (outside, outside / "new", outside / "lock"):
        if name == "blocks":
            (folder / "blocks").symlink_to(target)
        else:
            (folder / "blocks").mkdir(exist_ok=True)
            (folder / "blocks" / "lock").symlink_to(target)
        before = tree(folder, outside)
        for call in (lambda: collect_garbage(folder), lambda: engine.snapshot(folder / "s", shared=True)):
            with pytest.raises(SnapshotFileError, match=r"there can be no blocks: .*symbolic link"):
                call()
        assert tree(folder, outside) == before
        (folder / "blocks" if name == "blocks" else folder / "blocks" / "lock").unlink()


def test_a_pipe_as_the_lock_is_refused(engine, tmp_path):
    (tmp_path / "blocks").mkdir()
    os.mkfifo(tmp_path / "blocks" / "lock")
    for call in (lambda: collect_garbage(tmp_path), lambda: engine.snapshot(tmp_path / "s", shared=True)):
        with pytest.raises(SnapshotFileError, match="'lock' in it is no regular file"):
            call()


def test_a_foreign_file_named_as_a_block_is_not_replaced(engine, folder, tmp_path):
    (first, *_) = [path for path in (folder / "blocks").rglob("*") if len(path.name) == 62]
    outside = populated(tmp_path / "outside")
    first.unlink()
    for make in (lambda: first.symlink_to(outside / HEX), lambda: os.mkfifo(first), first.mkdir):
        make()
        before = tree(folder, outside)
        with pytest.raises(SnapshotFileError, match=r"its blocks can't be written: .* this is a"):
            engine.snapshot(folder / "other", shared=True)
        assert tree(folder, outside) == before
        first.rmdir() if first.is_dir() and not first.is_symlink() else first.unlink()
    parent = first.parent
    parent.rmdir() if not list(parent.iterdir()) else parent.rename(tmp_path / "moved")
    parent.symlink_to(outside)
    before = tree(outside)
    with pytest.raises(SnapshotFileError, match="its blocks can't be written"):
        engine.snapshot(folder / "other", shared=True)
    assert tree(outside) == before


@pytest.mark.parametrize("when", ["before it is opened", "after"])
def test_a_folder_that_becomes_a_link_meanwhile(folder, tmp_path, monkeypatch, when):
    outside = populated(tmp_path / "outside")
    begin = folder / "blocks" / "01"
    begin.mkdir()
    (begin / HEX).write_bytes(b"rubbish")

    def swapped(real):
        def call(*args, **options):
            if begin.is_dir() and not begin.is_symlink() and (when == "after" or args[0] == "01"):
                begin.rename(tmp_path / "moved")
                begin.symlink_to(outside)
            return real(*args, **options)

        return call

    before = tree(outside)
    if when == "after":
        monkeypatch.setattr(blocks, "_remove_in", swapped(blocks._remove_in))
        assert collect_garbage(folder) == 7
    else:
        monkeypatch.setattr(blocks, "open_folder", swapped(blocks.open_folder))
        with pytest.raises(SnapshotFileError, match="its blocks can't be collected"):
            collect_garbage(folder)
    assert tree(outside) == before
    assert (tmp_path / "moved" / HEX).exists() == (when != "after")


def test_the_folder_of_snapshots_is_the_one_whose_blocks_go(engine, folder, tmp_path, monkeypatch):
    """Another folder under its name doesn't tell which blocks are needed."""
    (tmp_path / "empty").mkdir()
    from oxillama.snapshot.format import block_garbage as store

    def swapped(*args):
        folder.rename(tmp_path / "moved")
        (tmp_path / "empty").rename(folder)
        return found(*args)

    found = store._wanted
    monkeypatch.setattr(store, "_wanted", swapped)
    assert collect_garbage(folder) == 0
    engine.resume(tmp_path / "moved" / "kept").close()


def test_links_to_nothing_are_no_snapshots(folder):
    (folder / "a").symlink_to("nowhere")
    (folder / "b").symlink_to("b")
    (folder / "c").symlink_to("kept/below")
    os.mkfifo(folder / "pipe")
    assert collect_garbage(folder) == 0


def test_paths_that_are_no_folders_are_refused():
    for bad in (5, None, b"x", ["a"], ""):
        with pytest.raises(ox.ConfigError, match="folder must be"):
            collect_garbage(bad)
    for bad in ("nowhere", "a\0b"):
        with pytest.raises(ox.ConfigError, match="folder must be one of snapshots with shared blocks"):
            collect_garbage(bad)


def test_devices_are_not_opened(monkeypatch):
    def opened(path, *args, **options):
        assert str(path) != "/dev/zero"
        return real(path, *args, **options)

    real = os.open
    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(SnapshotFileError, match="no regular file"):
        ox.Engine.restore("/dev/zero")


def test_a_swapped_temporary_file_is_not_removed(folder, monkeypatch):
    """Between the moment when it is locked and the one when it goes."""
    path = folder / TEMPORARY
    path.write_bytes(b"left")
    from oxillama.gguf import output

    def swapped(descriptor):
        path.unlink()
        path.write_bytes(b"of a foreign one")
        return lock(descriptor)

    lock = output._lock
    monkeypatch.setattr(output, "_lock", swapped)
    assert collect_garbage(folder) == 0
    assert path.read_bytes() == b"of a foreign one"
    monkeypatch.undo()
    with path.open("rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert collect_garbage(folder) == 0
    assert collect_garbage(folder) == 16
