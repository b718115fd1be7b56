"""Key tables: what they hold is what a dict would, in memory that doesn't grow."""

import os
import random
import resource
import tracemalloc

import pytest

from oxillama.data import key_table
from oxillama.data.key_table import KeyTable


def test_it_holds_what_a_dict_holds(tmp_path):
    draw, known = random.Random(5), {}
    with KeyTable(str(tmp_path), 4) as table:
        for _ in range(20_000):
            key, value = b"%d" % draw.randrange(6000), draw.randbytes(4)
            assert table.put(key, value) == known.get(key)
            known[key] = value
            other = b"%d" % draw.randrange(12_000)
            assert table.get(other) == known.get(other)
        assert len(table) == len(known) > 1 << key_table.FIRST_BITS
        assert all(table.get(key) == value for key, value in known.items())
    assert os.listdir(tmp_path) == []


def test_keys_whose_places_are_the_same(tmp_path, monkeypatch):
    """All of them at the end of the file, from where a search goes on at its beginning."""
    monkeypatch.setattr(key_table, "_digest", lambda key: b"\xff" * 8 + key.rjust(8, b"\0"))
    with KeyTable(str(tmp_path), 1) as table:
        for i in range(700):
            assert table.put(b"%d" % i, bytes([i % 251])) is None
        assert [table.get(b"%d" % i) for i in range(700)] == [bytes([i % 251]) for i in range(700)]
        assert table.get(b"none") is None


def test_a_table_that_cannot_grow_stays_as_it_is(tmp_path, monkeypatch):
    with KeyTable(str(tmp_path), 1) as table:
        for i in range(512):
            table.put(b"%d" % i, b"a")
        with monkeypatch.context() as patch:
            patch.setattr(KeyTable, "_made", lambda self: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space left"):
                table.put(b"x", b"b")
        assert (table.get(b"x"), table.get(b"511"), len(table)) == (None, b"a", 512)
        table.put(b"x", b"b")
        assert (table.get(b"x"), table.get(b"511"), len(table)) == (b"b", b"a", 513)


@pytest.mark.parametrize("call", ["pwrite", "truncate"])
def test_a_table_that_has_no_room_names_its_folder(tmp_path, monkeypatch, call):
    """Its file has no name, and its blocks come when they are written."""

    def full(*ignored):
        raise OSError(28, "No space left on device")

    def fill(table):
        for i in range(600):  # so that it grows
            table.put(b"%d" % i, b"a")

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with KeyTable(str(tmp_path), 1) as table:
        if call == "pwrite":
            monkeypatch.setattr(os, "pwrite", full)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (25_000, limit[1]))  # as it is now, 1,024 slots of 17 bytes
        try:
            with pytest.raises(OSError, match=r"No space left|File too large") as told:
                fill(table)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert told.value.filename == str(tmp_path)


def test_memory_does_not_grow_with_keys(tmp_path):
    def peak(n):
        with KeyTable(str(tmp_path), 24) as table:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for i in range(n):
                table.put(b"%d" % i, bytes(24))
            return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        peak(100)
        assert peak(20_000) < 600_000  # the slots that are read at a time
    finally:
        tracemalloc.stop()
