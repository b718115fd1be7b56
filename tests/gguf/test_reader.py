"""Opening well-formed files: what is read equals what was packed by hand."""

import gc
import struct

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import ConfigError, GGUFError, LoadError, ModelNotFoundError

from . import build as b


def test_every_value_type_is_read():
    m = gguf.open(b.small()).metadata
    assert list(m.items())[:12] == [
        ("general.architecture", "llama"), ("a.u8", 250), ("a.i8", -3), ("a.u16", 65000), ("a.i16", -300),
        ("a.u32", 4_000_000_000), ("a.i32", -70000), ("a.f32", 0.5), ("a.bool", True), ("a.u64", 1 << 63),
        ("a.i64", -(1 << 62)), ("a.f64", 1e-300),
    ]  # fmt: skip
    assert m["a.bool"] is True
    assert m["a.strings"].tolist() == ["", "x", "é日"]
    assert m["a.ints"].tolist() == [-1, 2, 3]
    assert m["a.floats"].tolist() == [0.25, -1.5]
    assert m["a.bools"].tolist() == [True, False]
    assert m["a.empty"].tolist() == []
    assert m.arch == "llama"
    assert [m.type_of(k).value for k in list(m)[:12]] == [8, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12]


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_are_read(version):
    f = gguf.open(b.gguf([b.kv("k", b.U32, 7)], [b.tensor("t", [4], 0, 0)], bytes(16), version=version))
    assert (f.version, f.alignment, dict(f.metadata), list(f.tensors)) == (version, 32, {"k": 7}, ["t"])


def test_tensors_are_views_with_the_outermost_dimension_first(tmp_path):
    raw = b.small()
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with gguf.open(path) as f:
        assert list(f.tensors) == ["w", "q", "i"]
        w, q, i = f.tensors.values()
        assert (w.name, w.shape, w.type, w.type_id, w.nbytes, w.n_values) == ("w", (3, 2), "F32", 0, 24, 6)
        assert (q.shape, q.type, q.nbytes, q.path) == ((2, 32), "Q8_0", 68, path)
        assert raw[q.offset : q.offset + q.nbytes] == q.data.tobytes() == bytes(range(68))
        assert q.offset - w.offset == 32
        assert w.offset % f.alignment == 0
        np.testing.assert_array_equal(w.dequantize(), np.arange(6, dtype=np.float32).reshape(3, 2))
        np.testing.assert_array_equal(i.dequantize(), np.arange(5, dtype=np.float32))
        assert not w.data.flags.writeable
        assert w.data.base is not None
        assert f.n_bytes == len(raw)


def test_q8_0_is_dequantised_like_its_definition():
    rng = np.random.default_rng(1)
    scales = rng.standard_normal(4).astype("<f2")
    codes = rng.integers(-128, 128, (4, 32)).astype(np.int8)
    blocks = b"".join(s.tobytes() + c.tobytes() for s, c in zip(scales, codes, strict=True))
    t = gguf.open(b.gguf([], [b.tensor("t", [64, 2], 8, 0)], blocks)).tensors["t"]
    want = scales.astype(np.float32)[:, None] * codes.astype(np.float32)
    np.testing.assert_array_equal(t.dequantize(), want.reshape(2, 64))


@pytest.mark.parametrize("source", [bytes, bytearray, memoryview])
def test_memory_is_read_without_a_copy(source):
    raw = source(b.small())
    f = gguf.open(raw)
    assert f.path is None
    assert f.tensors["w"].path is None
    assert np.shares_memory(f.tensors["q"].data, np.frombuffer(raw, np.uint8))
    assert not f.tensors["q"].data.flags.writeable


def test_alignment_of_the_file_rules_where_data_start():
    for alignment in (1, 8, 64, 1 << 20):
        kvs = [b.kv("general.alignment", b.U32, alignment)]
        infos = [b.tensor("x", [4], 0, 0), b.tensor("y", [1], 24, max(alignment, 16))]
        data = struct.pack("<4f", 1, 2, 3, 4)
        raw = b.gguf(kvs, infos, data + bytes(max(alignment, 16) - 16) + b"\x05", alignment=alignment)
        f = gguf.open(raw)
        assert f.alignment == alignment
        assert f.tensors["x"].dequantize().tolist() == [1, 2, 3, 4]
        assert f.tensors["y"].dequantize().tolist() == [5]


def test_gaps_and_another_order_of_data_are_read():
    infos = [b.tensor("late", [1], 24, 96), b.tensor("early", [1], 24, 0)]
    f = gguf.open(b.gguf([], infos, b"\x01" + bytes(95) + b"\x02"))
    assert [(n, t.dequantize().tolist()) for n, t in f.tensors.items()] == [("late", [2]), ("early", [1])]


def test_a_file_without_anything_is_a_file():
    f = gguf.open(b.gguf())
    assert (len(f.metadata), len(f.tensors), f.n_bytes) == (0, 0, 24)


def test_a_closed_file_says_so_and_what_was_taken_from_it_stays_valid(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b.small())
    with gguf.open(path) as f:
        metadata, strings, w = f.metadata, f.metadata["a.strings"], f.tensors["w"]
        assert not f.closed
    assert f.closed
    f.close()
    path.unlink()
    gc.collect()
    for name in ("metadata", "tensors", "version", "alignment", "n_bytes", "shards"):
        with pytest.raises(GGUFError, match=r"m\.gguf: the file is closed"):
            getattr(f, name)
    with pytest.raises(GGUFError, match="closed"), f:
        pass
    assert f.path == path
    assert metadata["a.u8"] == 250
    assert strings.tolist() == ["", "x", "é日"]
    assert w.dequantize().sum() == 15


def test_paths_of_all_kinds_are_taken(tmp_path):
    path = tmp_path / "model of ours.gguf"
    path.write_bytes(b.small())
    assert gguf.open(str(path)).path == gguf.open(path).path == path


def test_what_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"none\.gguf: there is no such file"):
        gguf.open(tmp_path / "none.gguf")
    with pytest.raises(FileNotFoundError):
        gguf.open(str(tmp_path / "none.gguf"))
    with pytest.raises(LoadError, match="a directory"):
        gguf.open(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GGUFError, match=r"empty\.gguf: the file is empty"):
        gguf.open(tmp_path / "empty.gguf")
    with pytest.raises(GGUFError, match="empty"):
        gguf.open(b"")
    with pytest.raises(LoadError, match="can't be read"):
        gguf.open("a\0b.gguf")
    with pytest.raises(LoadError, match="can't be read"):
        gguf.open(tmp_path / ("x" * 5000))


def test_a_pipe_is_refused_before_anyone_waits_for_it(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="not a regular file"):
        gguf.open(tmp_path / "pipe")


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    # Permissions don't stop root, so the refusal is played.
    path = tmp_path / "secret.gguf"
    path.write_bytes(b.small())

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(LoadError, match=r"secret\.gguf.*Permission denied"):
        gguf.open(path)


@pytest.mark.parametrize("source", [None, 3, ["a"], 1.5])
def test_a_source_of_another_type_is_refused(source):
    with pytest.raises(ConfigError, match="source is a"):
        gguf.open(source)


def test_memory_with_holes_is_refused():
    with pytest.raises(ConfigError, match="not contiguous"):
        gguf.open(memoryview(b.small())[::2])
