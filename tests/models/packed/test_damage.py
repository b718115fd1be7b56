"""Packed files that are damaged, cut off, hostile or of another model: never used, and never the end of the process."""

import json
import logging
import os
from random import Random

import pytest
from blake3 import blake3

import oxillama as ox
from oxillama.errors import ModelFileError, ModelNotFoundError, PackedFileError
from oxillama.models.packed import pack_model, verify_model
from oxillama.models.packed.layout import FIXED_BYTES, MAGIC, Header, padded
from tests.models.packed.packing import open_runner, packed_files
from tests.offload.paged import open_runner as open_plain
from tests.offload.paged import path_of, rows, tokens_of

NAME = "llama"


@pytest.fixture
def named(tmp_path):
    """A packed file outside the cache."""
    return pack_model(path_of(NAME), tmp_path / "llama.oxpack", 2)


def expected():
    return rows(open_plain(path_of(NAME)), tokens_of(NAME))


def fields_of(data):
    n = int.from_bytes(data[12:16], "little")
    return json.loads(data[FIXED_BYTES : FIXED_BYTES + n])


def with_fields(data, fields):
    """The file with another header, whose checksum is right, and with its weights where they were or should be."""
    text = json.dumps(fields).encode() if isinstance(fields, dict | list) else fields
    start = len(padded(data[: FIXED_BYTES + int.from_bytes(data[12:16], "little")], 4096))
    head = MAGIC + (1).to_bytes(4, "little") + len(text).to_bytes(4, "little") + blake3(text).digest() + text
    return padded(head, 4096) + data[start:]


def test_a_named_file_is_used(named):
    assert (rows(open_runner(path_of(NAME), named), tokens_of(NAME)) == expected()).all()
    assert packed_files() == []


@pytest.mark.parametrize("place", [0, 9, 14, 30, FIXED_BYTES + 5, 5000, -1])
def test_a_changed_byte_is_found(named, place):
    data = bytearray(named.read_bytes())
    data[place] ^= 1
    named.write_bytes(data)
    with pytest.raises(PackedFileError, match=r"llama\.oxpack: "):
        open_runner(path_of(NAME), named)


@pytest.mark.parametrize("length", [0, 1, 40, FIXED_BYTES, 3000, 4096, 6000, -1])
def test_a_cut_file_is_found(named, length):
    named.write_bytes(named.read_bytes()[:length])
    with pytest.raises(PackedFileError, match=r"llama\.oxpack: "):
        open_runner(path_of(NAME), named)


def test_a_longer_file_is_found(named):
    named.write_bytes(named.read_bytes() + b"\0")
    with pytest.raises(PackedFileError, match="the file was cut"):
        open_runner(path_of(NAME), named)


def test_what_is_no_packed_file_is_refused(tmp_path):
    for place, message in ((path_of(NAME), "this is no file of packed weights"), (tmp_path, "this is a directory")):
        with pytest.raises(PackedFileError, match=message):
            open_runner(path_of(NAME), place)
    with pytest.raises(ModelNotFoundError, match="oxillama pack MODEL"):
        open_runner(path_of(NAME), tmp_path / "nothing")
    with pytest.raises(ModelNotFoundError, match="can't be read"):
        open_runner(path_of(NAME), "a\0b")


def test_files_of_other_models_versions_and_layouts_are_refused(named, monkeypatch):
    with pytest.raises(PackedFileError, match=r"of another model \(.*llama\.gguf\)"):
        open_runner(path_of("qwen2"), named)
    data = named.read_bytes()
    named.write_bytes(data[:8] + (2).to_bytes(4, "little") + data[12:])
    with pytest.raises(PackedFileError, match="version 2 of packed weights; this build reads 1: pack it again"):
        open_runner(path_of(NAME), named)
    named.write_bytes(with_fields(data, fields_of(data) | {"layout": 0}))
    with pytest.raises(PackedFileError, match="panels of layout 0; this build has 1: pack the model again"):
        open_runner(path_of(NAME), named)
    named.write_bytes(with_fields(data, fields_of(data) | {"plan": "00" * 32}))
    with pytest.raises(PackedFileError, match="cut out of the model in another way"):
        open_runner(path_of(NAME), named)


def test_headers_that_lie_are_refused(named):
    """With right checksums: nothing but the checks keeps entries inside the file and as large as their matrices."""
    data, random = named.read_bytes(), Random(1)
    good = fields_of(data)
    rows_ = good["entries"]
    changed = [b"[]", b"{}", b"[" * 100_000, b'{"entries": [[]]}', b"\xff\xfe", b"NaN"]
    changed += [{k: v for k, v in good.items() if k != name} for name in good]
    for value in (-1, 0, 1 << 61, 1 << 70, 1.5, None, True, "x", [], "00" * 31):
        changed += [good | {name: value} for name in good if name not in ("model_path", "layout")]
        for column in range(7):
            i = random.randrange(len(rows_))
            row = [*rows_[i]]
            if row[column] != value:
                row[column] = value
                changed.append(good | {"entries": [*rows_[:i], row, *rows_[i + 1 :]]})
    changed += [good | {"entries": rows_[:-1]}, good | {"entries": [*rows_, rows_[-1]]}]
    changed += [good | {"entries": [rows_[1], rows_[0], *rows_[2:]]}]
    for fields in changed:
        named.write_bytes(with_fields(data, fields))
        with pytest.raises(PackedFileError):
            open_runner(path_of(NAME), named)


def test_a_damaged_file_of_the_cache_is_made_again(caplog):
    open_runner(path_of(NAME))
    (path,) = packed_files()
    good = path.read_bytes()
    for bad in (b"", good[:-1], good[:5000], good[:-5] + b"\1" + good[-4:], b"x" + good[1:]):
        path.write_bytes(bad)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "oxillama"):
            runner = open_runner(path_of(NAME))
        assert "it is made again" in caplog.text
        assert path.read_bytes() == good
        assert (rows(runner, tokens_of(NAME)) == expected()).all()


def test_a_model_that_is_changed_in_place_gets_another_file(tmp_path):
    """Also where head, tail, size and shapes are the same, and where the time of modification was set back."""
    path, tokens = tmp_path / "model.gguf", tokens_of(NAME)
    data = bytearray(path_of(NAME).read_bytes())
    path.write_bytes(data)
    info = path.stat()
    before = rows(open_runner(path), tokens)
    middle = len(data) // 2
    data[middle : middle + 4096] = bytes(4096)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    after = rows(open_runner(path), tokens)
    assert (after == rows(open_plain(path), tokens)).all()
    assert (after != before).any()
    assert len(packed_files()) == 2


@pytest.mark.parametrize("what", ["cut", "written"])
def test_a_file_that_changes_while_it_is_used_fails_the_request(what):
    with ox.load(packed=True) as engine:
        before = engine.forward_logits([1, 2, 3]).copy()
        (path,) = packed_files()
        data = path.read_bytes()
        with path.open("r+b") as file:
            if what == "cut":
                file.truncate(4096)
            else:
                file.seek(len(data) // 2)
                file.write(bytes(4096))
        with pytest.raises(ModelFileError, match=r"\.oxpack: the file (had|was written to|could not be read)"):
            engine.forward_logits([1, 2, 3])
    with ox.load(packed=True) as engine:
        assert (engine.forward_logits([1, 2, 3]) == before).all()


def test_a_file_that_is_removed_stays_in_use():
    with ox.load(packed=True) as engine:
        before = engine.forward_logits([1, 2, 3]).copy()
        packed_files()[0].unlink()
        assert (engine.forward_logits([1, 2, 3]) == before).all()


def test_checksums_are_compared_on_demand(named):
    assert verify_model(path_of(NAME), named, 2) == named
    with pytest.raises(ModelNotFoundError):
        verify_model(path_of(NAME), None, 2)
    pack_model(path_of(NAME), None, 2)
    assert verify_model(path_of(NAME), None, 2) == packed_files()[0]


def test_damage_below_the_file_system_is_found_by_verify(named, monkeypatch):
    """The time of change stands still, as when a disk forgets: loading trusts it, `verify` reads everything."""
    open_runner(path_of(NAME), named)
    monkeypatch.setattr("oxillama.models.packed.notes.stamp_of", lambda source: "0" * 40)
    open_runner(path_of(NAME), named)
    data = bytearray(named.read_bytes())
    data[-1] ^= 1
    named.write_bytes(data)
    with pytest.raises(PackedFileError, match=r"the checksum of .* is wrong: the file is damaged"):
        verify_model(path_of(NAME), named, 2)


def test_a_file_that_can_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("oxillama.models.packed.writing.os.pwrite", full)
    with pytest.raises(OSError, match="No space left") as caught:
        pack_model(path_of(NAME), tmp_path / "x.oxpack", 2)
    assert caught.value.errno == 28
    assert not [p for p in tmp_path.iterdir() if p.is_file()]
    with pytest.raises(ox.LoadError, match="No space left on device; set OXILLAMA_CACHE to a folder with room"):
        open_runner(path_of(NAME))
    assert packed_files() == []


def test_a_header_reads_back():
    assert (
        Header.read(memoryview(header := Header(bytes(32), bytes(32), 1, 4096, "x", ()).encoded()), "x").entries == ()
    )
    assert len(header) == 4096
