"""Round trips: any file that is read is written again as it was."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama.gguf as gguf
from oxillama.gguf import GGUFWriter

from . import build as b


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.gguf"


STRANGE = {
    "all types": b.small(),
    "version 2": b.gguf([b.kv("k", b.U8, 1)], [b.tensor("t", [4], 0, 0)], bytes(16), version=2),
    "not padded at the end": b.gguf([], [b.tensor("t", [3], 24, 0)], b"abc"),
    "bytes behind the end": b.gguf([], [b.tensor("t", [3], 24, 0)], b"abc" + bytes(61) + b"tail"),
    "bytes in gaps": b.gguf([], [b.tensor("x", [1], 24, 64), b.tensor("y", [1], 24, 0)], bytes(range(70))),
    "no tensors": b.gguf([b.kv("k", b.STRING, "v")]),
    "no tensors, padded": b.gguf([b.kv("k", b.STRING, "v")]) + bytes(3),
    "signalling NaN": b.gguf(
        [b.kv_raw("k", b.F32, b"\1\0\xa0\x7f"), b.kv_raw("d", b.F64, b"\1" + bytes(5) + b"\xf4\x7f")]
    ),
    "alignment": b.gguf([b.kv("general.alignment", b.U32, 8)], [b.tensor("t", [1], 24, 8)], bytes(9), alignment=8),
    "strings not UTF-8": b.gguf([b.kv_array("k", b.STRING, [b"\xff", b"\0"])]),
    "header padding": b.gguf([], [b.tensor("t", [3], 24, 0)]) + b"\7" * 7 + b"abc",
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_copy_is_the_same_byte_for_byte(name, path):
    with gguf.open(STRANGE[name]) as f:
        gguf.copy(f, path)
    assert path.read_bytes() == STRANGE[name]


def test_metadata_and_tensors_are_written_as_they_were_read(path):
    padded = b.small() + bytes(27)
    f = gguf.open(padded)
    gguf.write_gguf(path, f.metadata, f.tensors)
    assert path.read_bytes() == padded
    gguf.write_gguf(path, dict(f.metadata), f.tensors)
    assert dict(gguf.open(path).metadata) == dict(f.metadata)


def test_overrides_are_part_of_a_copy(path):
    raw = b.gguf([b.kv("k", b.STRING, "v"), b.kv("n", b.U8, 1)], [b.tensor("t", [3], 24, 0)], b"abc")
    gguf.copy(gguf.open(raw, overrides={"k": "a longer text than it was", "n": 2}), path)
    want = [b.kv("k", b.STRING, "a longer text than it was"), b.kv("n", b.U8, 2)]
    assert path.read_bytes() == b.gguf(want, [b.tensor("t", [3], 24, 0)], b"abc")


INTS = st.integers(-(1 << 63), (1 << 64) - 1)
VALUES = st.one_of(
    st.booleans(), INTS, st.floats(width=32), st.text(), st.lists(st.text(), max_size=8),
    st.lists(st.booleans(), max_size=9),
    st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=9), st.lists(st.floats(width=32), max_size=9),
)  # fmt: skip
ARRAYS = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20)


@given(
    st.dictionaries(st.text(min_size=1, max_size=30), VALUES, max_size=8),
    st.dictionaries(st.text(min_size=1, max_size=30), ARRAYS, max_size=6),
    st.sampled_from([1, 4, 32, 64, 4096]),
    st.sampled_from([2, 3]),
)
def test_anything_written_is_read_again_and_copied_again(tmp_path_factory, values, arrays, alignment, version):
    values.pop("general.alignment", None)
    path = tmp_path_factory.getbasetemp() / f"any-{os.getpid()}.gguf"
    w = GGUFWriter(path, alignment=alignment, version=version)
    for k, v in values.items():
        w.add(k, v)
    for k, v in arrays.items():
        w.add_tensor(k, np.array(v, np.float32))
    w.write()
    written = path.read_bytes()
    with gguf.open(written) as f:
        read = {k: v.tolist() if isinstance(v, gguf.GGUFArray) else v for k, v in f.metadata.items()}
        assert read.pop("general.alignment", 32) == alignment
        assert repr(read) == repr(values)
        assert {k: t.dequantize().tolist() for k, t in f.tensors.items()} == arrays
        gguf.copy(f, path)
        assert path.read_bytes() == written
        gguf.write_gguf(path, f.metadata, f.tensors, version=version)
        assert path.read_bytes() == written
