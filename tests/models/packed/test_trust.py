"""Packed weights are neither written through links nor taken from where others can write."""

import os
import stat

import pytest

import oxillama as ox
from oxillama._util.trust import folder_fault, link_fault, owner_fault
from oxillama.core.loading import shipped_model
from oxillama.gguf.output import atomic_file
from oxillama.models.packed import Cache, pack_model
from oxillama.models.packed.notes import Notes
from tests.models.packed.packing import packed_files

NOBODY = 65534
ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


def text(model_path=None, **options):
    with ox.load(model_path, num_threads=1, **options) as engine:
        return engine.generate("Once upon a time", max_tokens=6, temperature=0).text


def made():
    """The packed file of the shipped model, in the cache."""
    text(packed=True)
    return packed_files()[0]


def test_what_is_made_is_its_users_alone(cache):
    mask = os.umask(0)
    try:
        path = made()
        own = pack_model(shipped_model(), cache.parent / "own.oxpack", 1)
    finally:
        os.umask(mask)
    modes = [stat.S_IMODE(os.stat(place).st_mode) for place in (cache, cache / "packed", cache / "notes", path, own)]
    assert modes == [0o700, 0o700, 0o700, 0o644, 0o644]
    assert text(packed=str(own)) == text()


def test_a_link_is_replaced_and_its_target_stays(cache, caplog):
    path = made()
    target = cache.parent / "target"
    target.write_text("mine")
    path.unlink()
    path.symlink_to(target)
    assert text(packed=True) == text()
    assert (target.read_text(), path.is_symlink()) == ("mine", False)
    assert "this is a symbolic link, and no file of the cache; it is made again" in caplog.text


@pytest.mark.parametrize("suffix", [".lock", ".used"])
def test_links_beside_it_make_no_file_elsewhere(cache, suffix):
    path = made()
    target = cache.parent / "target"
    place = path.with_suffix(suffix)
    place.unlink(missing_ok=True)
    place.symlink_to(target)
    if suffix == ".lock":
        path.unlink()
        with pytest.raises(ox.LoadError, match="packed weights can't be written"):
            text(packed=True)
    else:
        assert text(packed=True) == text()
    assert not target.exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
@pytest.mark.parametrize("which", ["cache", "cache/packed"])
def test_a_folder_where_others_can_write_is_refused(cache, which, mode):
    path = made()
    (cache.parent / which).chmod(mode)
    with pytest.raises(ox.LoadError, match=r"others can write to it \(mode .*chmod go-w; set OXILLAMA_CACHE") as found:
        text(packed=True)
    assert str(cache.parent / which) in str(found.value)
    with pytest.raises(ox.LoadError, match="others can write to it"):
        pack_model(shipped_model(), None, 1)
    assert path.exists()
    (cache.parent / which).chmod(0o700)
    assert text(packed=True) == text()


def test_a_folder_above_it_is_sticky_or_its_users_alone(tmp_path, monkeypatch):
    above = tmp_path / "above"
    monkeypatch.setenv("OXILLAMA_CACHE", str(above / "inner" / "cache"))
    made()
    above.chmod(0o777)
    with pytest.raises(ox.LoadError, match=r"others can write to .*above \(mode 777\), and replace what is in it"):
        text(packed=True)
    above.chmod(0o1777)
    assert text(packed=True) == text()


def test_a_link_on_the_way_is_followed_and_looked_at(tmp_path, monkeypatch):
    real, around = tmp_path / "real", tmp_path / "around"
    real.mkdir(mode=0o700)
    around.mkdir()
    (around / "link").symlink_to("../real")
    monkeypatch.setenv("OXILLAMA_CACHE", str(around / "link" / "cache"))
    assert text(packed=True) == text()
    around.chmod(0o777)
    with pytest.raises(ox.LoadError, match=r"others can write to .*around"):
        text(packed=True)


def test_a_file_that_others_could_write_is_made_again(caplog):
    path = made()
    before = path.stat().st_ino
    path.chmod(0o666)
    assert text(packed=True) == text()
    assert (path.stat().st_ino != before, stat.S_IMODE(path.stat().st_mode) & 0o022) == (True, 0)
    assert "others can write to it (mode 666)" in caplog.text


@ROOT
@pytest.mark.parametrize("which", ["packed", "."])
def test_a_folder_of_another_user_is_refused(cache, which):
    made()
    os.chown(cache / which, NOBODY, NOBODY)
    with pytest.raises(ox.LoadError, match=r"it belongs to another user \(uid 65534\)"):
        text(packed=True)


@ROOT
def test_a_file_of_another_user_is_made_again(caplog):
    path = made()
    os.chown(path, NOBODY, NOBODY)
    assert text(packed=True) == text()
    assert (path.stat().st_uid, "it belongs to another user (uid 65534)" in caplog.text) == (0, True)


@ROOT
def test_a_named_file_is_of_its_user_or_of_the_models_owner(tmp_path):
    model = tmp_path / "model.gguf"
    with open(shipped_model(), "rb") as f:
        model.write_bytes(f.read())
    packed = pack_model(model, tmp_path / "model.oxpack", 1)
    expected = text()
    os.chown(packed, NOBODY, NOBODY)
    with pytest.raises(ox.PackedFileError, match=r"it belongs to another user \(uid 65534\): chown it"):
        text(model, packed=packed)
    os.chown(model, NOBODY, NOBODY)
    assert text(model, packed=packed) == expected
    packed.chmod(0o664)
    with pytest.raises(ox.PackedFileError, match=r"others can write to it \(mode 664\)"):
        text(model, packed=packed)


def test_notes_where_others_can_write_are_neither_read_nor_kept(tmp_path):
    folder = tmp_path / "notes"
    notes = Notes(folder)
    notes.keep("0" * 40, bytes(32))
    assert notes.find("0" * 40) == bytes(32)
    folder.chmod(0o777)
    assert notes.find("0" * 40) is None
    notes.keep("1" * 40, bytes(32))
    assert [path.name for path in folder.iterdir()] == ["0" * 40]


@ROOT
def test_the_cache_of_root_serves_all(monkeypatch):
    """An image may bring it along: what root wrote, others may compute with."""
    made()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    Cache.default().check()


def test_faults(tmp_path):
    tmp_path.chmod(0o700)
    assert folder_fault(tmp_path) is None
    assert owner_fault(os.stat(tmp_path)) is None
    with pytest.raises(FileNotFoundError):
        folder_fault(tmp_path / "none")


@ROOT
def test_no_file_is_written_through_a_link_of_another_user_where_others_can_write(tmp_path):
    """As `fs.protected_symlinks` of Linux has it, which resolving a path would go round."""
    shared, target = tmp_path / "shared", tmp_path / "target"
    shared.mkdir()
    target.write_text("mine")
    link = shared / "out.gguf"
    link.symlink_to(target)
    with atomic_file(link) as f:  # a link of one's own
        f.write(b"new")
    assert target.read_text() == "new"
    os.lchown(link, NOBODY, NOBODY)
    assert link_fault(link) is None  # where others can't write
    shared.chmod(0o1777)
    with pytest.raises(ox.ConfigError, match=r"a symbolic link of another user \(uid 65534\)"), atomic_file(link) as f:
        f.write(b"newer")
    assert target.read_text() == "new"
