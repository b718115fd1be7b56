"""Early writing to disk, which changes nothing of the file."""

import os

from oxillama.kernels.files import begin_writing
from oxillama.snapshot.format import writer as writing
from tests.snapshot.models import load, tokens_of


def test_flushes_come_in_order_and_the_file_is_the_same(tmp_path, monkeypatch):
    begun = []

    def noted(fd, offset, n_bytes):
        assert os.fstat(fd).st_size >= offset + n_bytes - 4096  # nothing is left in a buffer but what fills up a page
        begun.append((offset, n_bytes))
        begin_writing(fd, offset, n_bytes)

    monkeypatch.setattr(writing, "begin_writing", noted)
    with load("llama") as engine:
        engine.prefill(tokens_of(engine, 40))
        engine.snapshot(tmp_path / "late")
        assert not begun  # it is small
        monkeypatch.setattr(writing, "EARLY", 1024)
        engine.snapshot(tmp_path / "early")
    assert (tmp_path / "early").read_bytes() == (tmp_path / "late").read_bytes()
    assert len(begun) > 1
    assert [offset for offset, _ in begun] == [0, *(offset + n for offset, n in begun[:-1])]


def test_an_impossible_early_flush_is_ignored(tmp_path):
    """The flush at the end reports errors."""
    path = tmp_path / "file"
    path.write_bytes(b"some text")
    with path.open("rb+") as f:
        for offset, n_bytes in ((0, 9), (0, 1 << 40), (-1, 5), (5, -1)):
            begin_writing(f.fileno(), offset, n_bytes)
    begin_writing(-1, 0, 9)
    read, write = os.pipe()
    begin_writing(write, 0, 9)
    os.close(read)
    os.close(write)
    assert path.read_bytes() == b"some text"
