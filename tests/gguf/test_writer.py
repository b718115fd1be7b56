"""Writing: the bytes are those that were packed by hand; what doesn't fit is refused."""

import errno
import os
import stat
import struct

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import ConfigError, QuantError
from oxillama.gguf import GGUFWriter, ValueType

from . import build as b


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.gguf"


def test_values_and_tensors_are_written_as_packed_by_hand(path):
    w = GGUFWriter(path, version=2)
    w.add("general.architecture", "llama")
    w.add("n", 7)
    w.add("negative", -7)
    w.add("large", 1 << 40)
    w.add("f", 0.5)
    w.add("tiny", 1e-300)
    w.add("flag", True)
    w.add("d", 0.1, ValueType.FLOAT64)
    w.add("u8", 9, "UINT8")
    w.add("words", ["a", "", "é"])
    w.add("raw", [b"\xff", "x"])
    w.add("ints", np.array([1, -2], np.int16))
    w.add("scores", [1, 2.5])
    w.add("none", [], "STRING")
    w.add_tensor("w", np.arange(6, dtype=np.float32).reshape(3, 2))
    w.add_tensor("q", bytes(range(68)), (2, 32), "Q8_0")
    w.add_tensor("h", np.array([1.5], ">f2"))
    w.write()
    kvs = [
        b.kv("general.architecture", b.STRING, "llama"), b.kv("n", b.U32, 7), b.kv("negative", b.I32, -7),
        b.kv("large", b.U64, 1 << 40), b.kv("f", b.F32, 0.5), b.kv("tiny", b.F64, 1e-300),
        b.kv("flag", b.BOOL, 1), b.kv("d", b.F64, 0.1),
        b.kv("u8", b.U8, 9), b.kv_array("words", b.STRING, ["a", "", "é"]), b.kv_array("raw", b.STRING, [b"\xff", "x"]),
        b.kv_array("ints", b.I16, [1, -2]), b.kv_array("scores", b.F32, [1, 2.5]), b.kv_array("none", b.STRING, []),
    ]  # fmt: skip
    infos = [b.tensor("w", [2, 3], 0, 0), b.tensor("q", [32, 2], 8, 32), b.tensor("h", [1], 1, 128)]
    data = struct.pack("<6f", *range(6)) + bytes(8) + bytes(range(68)) + bytes(28) + struct.pack("<e", 1.5) + bytes(30)
    assert path.read_bytes() == b.gguf(kvs, infos, data, version=2)


def test_alignment_is_kept_in_the_file(path):
    w = GGUFWriter(path, alignment=128)
    w.add_tensor("a", np.ones(3, np.int8))
    w.add_tensor("b", np.ones(1, np.float64))
    w.write()
    kvs = [b.kv("general.alignment", b.U32, 128)]
    infos = [b.tensor("a", [3], 24, 0), b.tensor("b", [1], 28, 128)]
    data = b"\1\1\1" + bytes(125) + struct.pack("<d", 1) + bytes(120)
    assert path.read_bytes() == b.gguf(kvs, infos, data, alignment=128)
    w = GGUFWriter(path)
    w.add("general.alignment", 64)
    assert w.alignment == 64


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i1", "i2", "i4", "i8", ">i4"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 1, 3), (2, 3, 1, 2)])
def test_arrays_come_back_in_value_and_shape(path, dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    w = GGUFWriter(path)
    w.add_tensor("t", array)
    w.add_tensor("transposed", array.T)
    w.write()
    with gguf.open(path) as f:
        np.testing.assert_array_equal(f.tensors["t"].dequantize(), array)
        np.testing.assert_array_equal(f.tensors["transposed"].dequantize(), array.T)


def test_functions_make_their_data_when_it_is_written(path):
    asked = []

    def make(value):
        asked.append(value)
        return np.full(4, value, np.float32)

    w = GGUFWriter(path)
    w.add_tensor("a", lambda: make(1), (4,), "F32")
    w.add_tensor("b", lambda: make(2).tobytes(), (2, 2), "f32")
    assert asked == []
    w.write()
    assert asked == [1, 2]
    assert [t.dequantize().sum() for t in gguf.open(path).tensors.values()] == [4, 8]


def test_nothing_is_left_of_a_file_that_fails(path, tmp_path):
    path.write_bytes(b"before")
    for bad in (bytes(3), None):
        w = GGUFWriter(path)
        w.add_tensor("a", lambda bad=bad: bad, (4,), "F32")
        with pytest.raises(ConfigError, match="tensor 'a': "):
            w.write()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_open_can_be_written_over(path):
    path.write_bytes(b.small())
    with gguf.open(path) as f:
        w = GGUFWriter(path)
        w.add_tensor("q", f.tensors["q"])
        w.write()
        assert f.tensors["q"].data.tobytes() == bytes(range(68))
    with gguf.open(path) as f:
        assert (list(f.tensors), f.tensors["q"].data.tobytes()) == (["q"], bytes(range(68)))


def test_mode_and_links_are_those_of_any_new_file(path, tmp_path):
    (tmp_path / "plain").touch()
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    GGUFWriter(link).write()
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert path.read_bytes() == b.gguf()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none.out\.gguf: .*no folder .*none"):
        GGUFWriter(tmp_path / "none" / "out.gguf").write()
    with pytest.raises(ConfigError, match="this is a directory"):
        GGUFWriter(tmp_path).write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("link", [False, True])
def test_what_is_no_file_is_not_replaced_by_one(path, tmp_path, link):
    os.mkfifo(tmp_path / "pipe")
    if link:
        path.symlink_to("pipe")
    with pytest.raises(ConfigError, match="a device, a pipe or a socket: give the name of a file"):
        GGUFWriter(path if link else tmp_path / "pipe").write()
    assert (tmp_path / "pipe").is_fifo()


def test_errors_of_the_system_name_the_file_that_was_wanted(path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        GGUFWriter(path).write()
    assert caught.value.filename == str(path)
    assert list(path.parent.iterdir()) == []


def test_a_name_that_is_too_long_is_refused_before_anything_is_written(tmp_path):
    def data():
        raise AssertionError("asked for data")

    path = tmp_path / ("n" * 300)
    writer = GGUFWriter(path)
    writer.add_tensor("t", data, (1,), "F32")
    with pytest.raises(OSError, match="too long") as caught:
        writer.write()
    assert caught.value.filename == str(path)


BAD_KEYS = ["", None, 3, "k" * 65536, "\ud800"]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_keys_are_refused(path, key):
    with pytest.raises(ConfigError, match="key "):
        GGUFWriter(path).add(key, 1)


@pytest.mark.parametrize("name", [*BAD_KEYS, "n" * 1025])
def test_bad_tensor_names_are_refused(path, name):
    with pytest.raises(ConfigError, match="tensor name "):
        GGUFWriter(path).add_tensor(name, np.zeros(1, np.float32))


def test_keys_and_names_are_given_once(path):
    w = GGUFWriter(path)
    w.add("k", 1)
    w.add_tensor("t", np.zeros(1, np.float32))
    with pytest.raises(ConfigError, match="key 'k' was given before"):
        w.add("k", 1)
    with pytest.raises(ConfigError, match="tensor name 't' was given before"):
        w.add_tensor("t", np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("value", "type", "message"),
    [
        (256, "UINT8", "doesn't fit into UINT8"),
        (-1, ValueType.UINT64, r"doesn't fit into UINT64 \(0 to 18446744073709551615\)"),
        (1.5, "INT32", "is a float, which is not written as INT32"),
        ("a", "FLOAT32", "is a str"),
        (1, "BOOL", "is a int"),
        (1, "STRING", "is a int"),
        (1, "ARRAY", "is a int"),
        (1e300, "FLOAT32", "too large for FLOAT32"),
        (1, "INT128", "unknown metadata value type 'INT128'"),
        (1, 13, "unknown metadata value type 13"),
        ([[1], [2]], None, "items of list"),
        ([1, True], None, "items of bool, int"),
        ([1, 300], "UINT8", r"k\[1\]: 300 doesn't fit"),
        (np.zeros((2, 2)), None, "one dimension"),
        ({1: 2}, None, "is a dict"),
        (1j, None, "is a complex"),
        (b"raw", None, "is a bytes"),
    ],
)
def test_values_that_do_not_fit_are_refused(path, value, type, message):
    with pytest.raises(ConfigError, match=message):
        GGUFWriter(path).add("k", value, type)


@pytest.mark.parametrize(
    ("data", "shape", "type", "message"),
    [
        (np.zeros(4, np.complex64), None, None, "dtype complex64"),
        (np.zeros(4, np.uint8), None, None, "dtype uint8"),
        (np.zeros(4, np.float32), (5,), None, r"shape \(5,\) for an array of shape \(4,\)"),
        (np.zeros((), np.float32), None, None, r"shape \(\)"),
        (np.zeros((2, 0), np.float32), None, None, "at least 1"),
        (np.zeros((1, 1, 1, 1, 1), np.float32), None, None, "1 to 4 dimensions"),
        (bytes(16), None, "F32", "need shape and type"),
        (bytes(16), (4,), None, "need shape and type"),
        (bytes(15), (4,), "F32", "15 bytes of data; its shape and type need 16"),
        (bytes(34), (2, 16), "Q8_0", "rows of 16; Q8_0 needs a multiple of 32"),
        (bytes(16), (1 << 40, 1 << 40), "F32", "at least 1 are needed"),
        (bytes(16), (2.0, 2), "F32", "sequence of integers"),
        ([1.0, 2.0], (2,), "F32", "data of type list"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(path, data, shape, type, message):
    with pytest.raises(ConfigError, match=f"tensor 't': .*{message}"):
        GGUFWriter(path).add_tensor("t", data, shape, type)


def test_unknown_formats_are_refused(path):
    with pytest.raises(QuantError, match="unknown tensor format 'Q9_9'"):
        GGUFWriter(path).add_tensor("t", bytes(4), (1,), "Q9_9")


@pytest.mark.parametrize("alignment", [0, 3, -8, 1 << 21, 32.0, "32"])
def test_bad_alignments_are_refused(path, alignment):
    with pytest.raises(ConfigError, match="alignment="):
        GGUFWriter(path, alignment=alignment)
    with pytest.raises(ConfigError, match=r"general\.alignment"):
        GGUFWriter(path).add("general.alignment", alignment)


def test_bad_versions_and_contradictions_are_refused(path):
    for version in (1, 4, None):
        with pytest.raises(ConfigError, match="version="):
            GGUFWriter(path, version=version)
    with pytest.raises(ConfigError, match="the writer's alignment 32"):
        GGUFWriter(path, alignment=32).add("general.alignment", 64)
