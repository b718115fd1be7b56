"""Typed access, overrides, arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama.gguf as gguf
from oxillama.errors import ConfigError, GGUFError, MissingKeyError
from oxillama.gguf import ValueType

from . import build as b


@pytest.fixture
def m():
    return gguf.open(b.small()).metadata


def test_typed_access_gives_values(m):
    assert m.get_str("general.architecture") == "llama"
    assert [m.get_int(f"a.{k}") for k in ("u8", "i8", "u64", "i64")] == [250, -3, 1 << 63, -(1 << 62)]
    assert m.get_float("a.f32") == 0.5
    assert m.get_float("a.f64") == 1e-300
    assert m.get_float("a.u8") == 250.0
    assert isinstance(m.get_float("a.u8"), float)
    assert m.get_bool("a.bool") is True
    assert m.get_array("a.ints", int).tolist() == [-1, 2, 3]
    assert m.get_array("a.ints", "float").tolist() == [-1, 2, 3]
    assert m.get_array("a.strings", "str")[2] == "é日"
    assert m.get_array("a.bools", bool)[0] is True


def test_absent_keys_give_the_default_or_are_named(m):
    assert m.get_int("no", 3) == 3
    assert m.get_str("no", None) is None
    assert m.get_float("no", None, minimum=1) is None
    assert m.get_int("no", 0, minimum=1) == 0
    assert m.get_array("no", str, ()) == ()
    for get in (m.get_str, m.get_int, m.get_float, m.get_bool, lambda k: m.get_array(k, str), m.entry, m.__getitem__):
        with pytest.raises(MissingKeyError, match=r"metadata has no key 'llama\.none'"):
            get("llama.none")
    with pytest.raises(KeyError):
        m["llama.none"]
    assert m.get("llama.none") is None
    assert "llama.none" not in m
    with pytest.raises(MissingKeyError, match=r"general\.architecture"):
        _ = gguf.open(b.gguf()).metadata.arch


@pytest.mark.parametrize(
    ("get", "message"),
    [
        (lambda m: m.get_str("a.u8"), r"'a\.u8' holds UINT8 250; a str is needed"),
        (lambda m: m.get_str("a.strings", "x"), "holds ARRAY of STRING"),
        (lambda m: m.get_int("a.f32", 1), r"'a\.f32' holds FLOAT32 0\.5; a int is needed"),
        (lambda m: m.get_int("a.bool"), "holds BOOL True"),
        (lambda m: m.get_bool("a.u8"), "holds UINT8"),
        (lambda m: m.get_float("general.architecture"), "holds STRING 'llama'"),
        (lambda m: m.get_array("a.ints", str), "holds ARRAY of INT16 .*; an array of str is needed"),
        (lambda m: m.get_array("a.floats", int), "ARRAY of FLOAT32"),
        (lambda m: m.get_array("a.u8", int, None), "holds UINT8"),
    ],
)
def test_values_of_another_type_are_named_even_with_a_default(m, get, message):
    with pytest.raises(MissingKeyError, match=message):
        get(m)


def test_values_out_of_range_are_named(m):
    assert m.get_int("a.u8", minimum=250, maximum=250) == 250
    with pytest.raises(MissingKeyError, match=r"'a\.u8' is 250; at most 249 is needed"):
        m.get_int("a.u8", maximum=249)
    with pytest.raises(MissingKeyError, match=r"'a\.i8' is -3; at least 0 and at most 9 is needed"):
        m.get_int("a.i8", 5, minimum=0, maximum=9)
    with pytest.raises(MissingKeyError, match=r"is 0\.5; at least 1\.0"):
        m.get_float("a.f32", minimum=1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_floats_that_are_not_finite_are_named(value):
    m = gguf.open(b.gguf([b.kv("k", b.F32, value)])).metadata
    with pytest.raises(MissingKeyError, match=r"'k' is .*finite"):
        m.get_float("k", 1.0)


def test_an_unknown_kind_of_array_is_refused(m):
    with pytest.raises(ConfigError, match="kind='complex'"):
        m.get_array("a.ints", complex)


def test_arrays_are_sequences():
    words = [f"w{i}" for i in range(100)]
    f = gguf.open(b.gguf([b.kv_array("w", b.STRING, words), b.kv_array("n", b.I64, list(range(-50, 50)))]))
    w, n = f.metadata["w"], f.metadata["n"]
    assert len(w) == 100
    assert w[7] == w[-93] == "w7"
    assert w[2:9:3] == ["w2", "w5", "w8"]
    assert list(w) == w.tolist() == words
    assert w == words
    assert n == list(range(-50, 50))
    assert w != n
    assert w != "w"
    assert "w99" in w
    assert n.index(3) == 53
    assert w.bytes_at(-1) == b"w99"
    assert (w.item_type, n.item_type) == (ValueType.STRING, ValueType.INT64)
    assert n.numpy().dtype == np.int64
    assert isinstance(n[0], int)
    for i in (100, -101):
        with pytest.raises(IndexError):
            w[i]
        with pytest.raises(IndexError):
            n[i]


def test_numbers_of_an_array_are_a_copy_that_may_be_changed():
    f = gguf.open(b.gguf([b.kv_array("n", b.F32, [1.5, 2.5])]))
    n = f.metadata["n"].numpy()
    assert n.flags.aligned
    n[0] = 9
    assert f.metadata["n"].tolist() == [1.5, 2.5]


def test_strings_have_no_numbers_and_numbers_no_strings(m):
    with pytest.raises(GGUFError, match=r"key 'a\.strings': holds strings"):
        m["a.strings"].numpy()
    with pytest.raises(GGUFError, match=r"key 'a\.ints': holds INT16"):
        m["a.ints"].bytes_list()
    with pytest.raises(GGUFError, match=r"key 'a\.ints': holds INT16"):
        m["a.ints"].bytes_at(0)


@given(st.lists(st.text(max_size=20), max_size=30))
def test_any_strings_are_found_again(words):
    f = gguf.open(b.gguf([b.kv("k", b.U8, 1), b.kv_array("w", b.STRING, words), b.kv("z", b.U8, 2)]))
    assert f.metadata["w"].tolist() == words == [f.metadata["w"][i] for i in range(len(words))]
    assert f.metadata["w"].bytes_list() == [w.encode() for w in words]
    assert f.metadata["z"] == 2


def test_memory_that_changes_while_open_is_noticed():
    raw = bytearray(b.gguf([b.kv_array("w", b.STRING, ["abc", "de"]), b.kv("z", b.U64, 0)]))
    f = gguf.open(raw)
    raw[raw.index(b"abc") - 8] = 200
    with pytest.raises(GGUFError, match=r"key 'w': .*changed while it was open"):
        f.metadata["w"].tolist()


def test_overrides_replace_and_add():
    f = gguf.open(b.small(), overrides={"a.u8": 7, "a.f32": 1e-5, "a.strings": ["n"], "new.int": 3, "new.text": "x"})
    m = f.metadata
    assert (m["a.u8"], m.type_of("a.u8")) == (7, ValueType.UINT8)
    assert m["a.f32"] == float(np.float32(1e-5))
    assert m["a.strings"].tolist() == ["n"]
    assert (m["new.int"], m["new.text"], m.type_of("new.int")) == (3, "x", ValueType.UINT32)
    assert (m["a.i8"], m.arch) == (-3, "llama")
    assert list(m)[-2:] == ["new.int", "new.text"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"a.u8": 256}, r"a\.u8: 256 doesn't fit into UINT8 \(0 to 255\)"),
        ({"a.u8": "7"}, r"a\.u8: '7' is a str"),
        ({"a.u8": 7.0}, r"a\.u8: 7\.0 is a float"),
        ({"a.u8": True}, r"a\.u8: True is a bool"),
        ({"a.bool": 1}, r"a\.bool: 1 is a int"),
        ({"general.architecture": b"x"}, "is a bytes"),
        ({"a.strings": "abc"}, r"a\.strings holds ARRAY of STRING, not STRING"),
        ({"a.u8": [1]}, r"a\.u8 holds UINT8, not ARRAY of UINT8"),
        ({"k": None}, "k: None is a NoneType"),
        ({"k": {}}, r"k: \{\} is a dict"),
        ({"k": [[1]]}, "items of list"),
        ({"k": [1, "a"]}, "items of int, str"),
        ({"k": 1 << 64}, "don't fit into any integer type"),
        ({"a.f32": 1e39}, "too large for FLOAT32"),
        ({"k": "\ud800"}, "k: the text can't be written as UTF-8"),
        ({"": 1}, "keys are strings that are not empty"),
        ({3: 1}, "keys are strings"),
        ({"general.alignment": 64}, r"general\.alignment says how the file is laid out"),
        ({"split.count": 1}, r"split\.count says"),
    ],
)
def test_bad_overrides_are_named(overrides, message):
    with pytest.raises(ConfigError, match=message):
        gguf.open(b.small(), overrides=overrides)


def test_overrides_must_be_a_mapping():
    with pytest.raises(ConfigError, match="overrides="):
        gguf.open(b.small(), overrides=[("a.u8", 1)])
