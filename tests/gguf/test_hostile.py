"""Files that were damaged, or made to do damage: each is refused with a message that names the place."""

import re
import struct
import tracemalloc

import pytest

import oxillama.gguf as gguf
from oxillama.errors import GGUFError, LoadError, UnsupportedModelError

from . import build as b

HUGE = 2**64 - 1
F32, I8, Q8_0, Q4_K = 0, 24, 8, 12
ONE = b.tensor("t", [4], F32, 0)


def one_kv(raw: bytes, **more: object) -> bytes:
    return b.gguf([raw], **more)


def one_tensor(raw: bytes, data: bytes = bytes(64)) -> bytes:
    return b.gguf([], [raw], data)


def aligned(value: object, type_id: int = b.U32) -> bytes:
    return b.gguf([b.kv("general.alignment", type_id, value)], [ONE], bytes(16))


def array_head(item_type: int, count: int, payload: bytes = b"") -> bytes:
    return one_kv(b.kv_raw("arr", b.ARRAY, struct.pack("<IQ", item_type, count) + payload))


CASES = {
    # header
    "version 1": (b.gguf(version=1), r"version, byte 4: GGUF version 1; versions 2 and 3"),
    "version 4": (b.gguf(version=4), r"version, byte 4: GGUF version 4"),
    "version 0": (b.gguf(version=0), r"GGUF version 0"),
    "big-endian": (b.gguf(version=3 << 24), r"version, byte 4: a big-endian file \(version 3\)"),
    "tensor count": (b.gguf(n_tensors=HUGE), rf"tensor count, byte 8: {HUGE}"),
    "tensor count, negative": (b.gguf(n_tensors=1 << 63), rf"tensor count, byte 8: {1 << 63}"),
    "tensor count beyond the bytes left": (b.gguf(n_tensors=1000), r"tensor count, byte 8: 1000 need at least 33000 b"),
    "key count": (b.gguf(n_kvs=HUGE), rf"key count, byte 16: {HUGE}"),
    "key count beyond the bytes left": (b.gguf(n_kvs=60000), r"key count, byte 16: 60000 need at least 840000 bytes"),
    "one key too few": (one_kv(b.kv("k", b.U32, 1), n_kvs=2), r"key 1|key count"),
    # keys
    "empty key": (one_kv(b.kv("", b.U32, 1)), r"key 0, byte 24: is empty"),
    "key twice": (b.gguf([b.kv("k", b.U32, 1), b.kv("k", b.U32, 1)]), r"key 'k', byte 41: is there twice"),
    "key too long": (one_kv(b.kv("k" * 65536, b.U32, 1)), r"key 0, byte 24: 65536 bytes long; at most 65535"),
    "key beyond the file": (b.gguf(n_kvs=1) + struct.pack("<Q", 1000) + b"k" * 20, r"key 0, byte 32: needs 1000 bytes"),
    "key of 2**64-1 bytes": (b.gguf(n_kvs=1) + struct.pack("<Q", HUGE) + b"k" * 20, rf"key 0, byte 24: {HUGE} bytes"),
    "key not UTF-8": (one_kv(b.kv(b"\xff\xfe", b.U32, 1)), r"key 0, byte 32: not UTF-8"),
    # values
    "value type 13": (
        one_kv(b.kv_raw("k", 13, bytes(8))),
        r"type of key 'k'|key 'k', byte 33: value type 13 is unknown",
    ),
    "value type 2**32-1": (one_kv(b.kv_raw("k", 2**32 - 1, bytes(8))), r"key 'k', byte 33: value type 4294967295"),
    "bool of 2": (one_kv(b.kv("k", b.BOOL, 2)), r"key 'k', byte 37: a BOOL of 2"),
    "string beyond the file": (
        one_kv(b.kv_raw("k", b.STRING, struct.pack("<Q", 9) + b"abc")),
        r"'k', byte 45: needs 9",
    ),
    "string of 2**64-1 bytes": (
        one_kv(b.kv_raw("k", b.STRING, struct.pack("<Q", HUGE))),
        rf"'k', .*needs {HUGE} bytes",
    ),
    "string not UTF-8": (one_kv(b.kv("k", b.STRING, b"a\xc3(")), r"key 'k', byte 45: not UTF-8: .*byte 1 of"),
    "string of a surrogate": (one_kv(b.kv("k", b.STRING, b"\xed\xa0\x80")), r"key 'k', byte 45: not UTF-8"),
    "number cut off": (one_kv(b.kv_raw("k", b.U64, bytes(4))), r"key 'k', byte 37: needs 8 bytes, the file has 4"),
    # arrays
    "array of arrays": (array_head(b.ARRAY, 0), r"key 'arr', byte 39: an array of arrays"),
    "array of type 13": (array_head(13, 0), r"key 'arr', byte 39: value type 13 is unknown"),
    "array of 2**64-1 bytes": (array_head(b.U8, HUGE, bytes(9)), rf"key 'arr', byte 43: {HUGE} items of UINT8 need"),
    "array whose size wraps to 0": (array_head(b.U64, 1 << 61, bytes(9)), rf"byte 43: {1 << 61} items of UINT64 need"),
    "strings whose size wraps": (array_head(b.STRING, 1 << 61, bytes(9)), rf"byte 43: {1 << 61} items of STRING need"),
    "strings beyond the bytes left": (array_head(b.STRING, 3, bytes(16)), r"byte 43: 3 items of STRING need 24 bytes"),
    "string in array beyond the file": (
        array_head(b.STRING, 2, b.text("ab") + struct.pack("<Q", 5) + b"abc"),
        r"key 'arr', byte 61: string 1 of 2",
    ),
    "string in array wraps": (
        array_head(b.STRING, 2, struct.pack("<Q", HUGE - 7) + bytes(8)),
        r"key 'arr', byte 51: string 0 of 2",
    ),
    "string in array takes all": (
        array_head(b.STRING, 2, struct.pack("<Q", 8) + bytes(8)),
        r"key 'arr', byte 67: string 1 of 2",
    ),
    "bool in array of 7": (array_head(b.BOOL, 3, b"\1\0\7"), r"key 'arr', byte 53: item 2 is a BOOL of 7"),
    # alignment
    "alignment 0": (aligned(0), r"'general\.alignment', byte 53: 0 is not a power of two"),
    "alignment 48": (aligned(48), r"48 is not a power of two"),
    "alignment 2 MiB": (aligned(1 << 21), r"2097152 is not a power of two of at most 1048576"),
    "alignment 2**31": (aligned(1 << 31), r"2147483648 is not a power of two of at most"),
    "alignment of a string": (aligned("32", b.STRING), r"'general\.alignment', byte 53: holds STRING; UINT32"),
    "alignment of 64 bits": (aligned(32, b.U64), r"holds UINT64; UINT32"),
    # tensor infos
    "tensor without name": (one_tensor(b.tensor("", [4], F32, 0)), r"name of tensor 0, byte 24: is empty"),
    "tensor twice": (
        b.gguf([], [ONE, b.tensor("t", [4], F32, 32)], bytes(64)),
        r"tensor 't', byte \d+: is there twice",
    ),
    "name too long": (one_tensor(b.tensor("n" * 1025, [4], F32, 0)), r"name of tensor 0, byte 24: 1025 bytes long"),
    "name of 2**63 bytes": (one_tensor(struct.pack("<Q", 1 << 63) + bytes(40)), r"name of tensor 0, byte 24: 92233720"),
    "name not UTF-8": (one_tensor(b.tensor(b"a\x80", [4], F32, 0)), r"name of tensor 0, byte 32: not UTF-8"),
    "no dimensions": (one_tensor(b.tensor("t", [], F32, 0) + bytes(8)), r"tensor 't', byte 33: 0 dimensions; 1 to 4"),
    "5 dimensions": (one_tensor(b.tensor("t", [1] * 5, F32, 0)), r"tensor 't', byte 33: 5 dimensions"),
    "2**32-1 dimensions": (one_tensor(b.tensor("t", [4], F32, 0, 2**32 - 1)), r"4294967295 dimensions"),
    "dimension 0": (one_tensor(b.tensor("t", [4, 0], F32, 0)), r"tensor 't', byte 37: dimensions \[4, 0\]: one is 0"),
    "dimensions of 2**63": (one_tensor(b.tensor("t", [1 << 32, 1 << 31], I8, 0)), r"tensor 't', byte 37: .*2\*\*63"),
    "dimensions that wrap": (one_tensor(b.tensor("t", [1 << 32, 1 << 32], I8, 0)), r"tensor 't', byte 37"),
    "dimension of 2**64-1": (one_tensor(b.tensor("t", [HUGE], F32, 0)), r"tensor 't', byte 37"),
    "bytes that wrap": (one_tensor(b.tensor("t", [1 << 62], F32, 0)), rf"tensor 't', .*{1 << 64} bytes of data"),
    "half a block": (one_tensor(b.tensor("t", [48], Q8_0, 0)), r"tensor 't', byte 45: rows of 48 values; Q8_0 .* 32"),
    "blocks over rows": (one_tensor(b.tensor("t", [128, 2], Q4_K, 0), bytes(144)), r"rows of 128 values; Q4_K .* 256"),
    "offset not aligned": (
        one_tensor(b.tensor("t", [4], F32, 16)),
        r"'t', byte 49: offset 16 is not a multiple of .* 32",
    ),
    "offset beyond the file": (
        one_tensor(b.tensor("t", [4], F32, 64)),
        r"tensor 't', byte 128: .*offset 64 end beyond",
    ),
    "offset near 2**64": (one_tensor(b.tensor("t", [4], F32, HUGE - 31)), r"tensor 't', .*end beyond the file"),
    "data too short": (
        one_tensor(ONE, bytes(15)),
        r"tensor 't', byte 64: 16 bytes of data at offset 0 end beyond .* 79",
    ),
    "no data": (b.gguf([], [ONE]), r"tensor 't', .*end beyond the file"),
    "overlap": (
        b.gguf([], [b.tensor("x", [9], F32, 0), b.tensor("y", [4], F32, 32)], bytes(64)),
        r"tensor 'y', byte 128: offset 32 overlaps tensor 'x', which ends at 36",
    ),
    "same place": (
        b.gguf([], [b.tensor("x", [4], F32, 0), b.tensor("y", [4], F32, 0)], bytes(64)),
        r"tensor 'y', .*offset 0 overlaps tensor 'x'",
    ),
    "overlap, listed backwards": (
        b.gguf([], [b.tensor("x", [4], F32, 32), b.tensor("y", [9], F32, 0)], bytes(64)),
        r"tensor 'x', .*overlaps tensor 'y'",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_by_name_and_place(name, tmp_path):
    raw, message = CASES[name]
    with pytest.raises(GGUFError, match=message) as caught:
        gguf.open(raw)
    assert str(caught.value).startswith("<memory>: ")
    path = tmp_path / "evil.gguf"
    path.write_bytes(raw)
    with pytest.raises(LoadError, match=re.escape(str(path)) + ".*byte"):
        gguf.open(path)


@pytest.mark.parametrize("type_id", [4, 5, 31, 32, 33, 36, 37, 38, 43, 1000, 2**32 - 1])
def test_unknown_and_removed_tensor_types_are_named(type_id):
    with pytest.raises(UnsupportedModelError, match=f"tensor 't', byte 45: unknown tensor type {type_id}"):
        gguf.open(one_tensor(b.tensor("t", [256], type_id, 0)))


def test_a_removed_tensor_type_is_known_by_its_old_name():
    with pytest.raises(UnsupportedModelError, match="Q4_0_8_8, which ggml has removed"):
        gguf.open(one_tensor(b.tensor("t", [256], 33, 0)))


def test_truncation_at_every_byte_is_refused():
    raw = b.small()
    for n in range(len(raw)):
        with pytest.raises(LoadError, match="<memory>: "):
            gguf.open(raw[:n])
    gguf.open(raw)


def test_truncation_of_a_vocabulary_at_every_byte_is_refused():
    raw = b.gguf([b.kv_array("t", b.STRING, ["a", "bc"]), b.kv("k", b.STRING, "z")])
    for n in range(len(raw)):
        with pytest.raises(LoadError, match="<memory>: "):
            gguf.open(raw[:n])
    gguf.open(raw)
    # Padding up to where data would start may be there, wholly or in part.
    for n in range(70):
        gguf.open(raw + bytes(n))


def test_a_string_array_that_is_not_utf8_is_named_when_it_is_decoded():
    f = gguf.open(one_kv(b.kv_array("words", b.STRING, ["fine", b"\xff!", "fine"])))
    words = f.metadata["words"]
    for decode in (words.tolist, lambda: list(words), lambda: words[1], lambda: words[-2]):
        with pytest.raises(GGUFError, match="key 'words': string 1 is not UTF-8"):
            decode()
    assert (words[0], words[2]) == ("fine", "fine")
    assert words.bytes_list() == [b"fine", b"\xff!", b"fine"]


def test_hostile_names_are_shown_escaped_and_short():
    raw = one_kv(b.kv_raw("\x1b[2J" + "k" * 60000, 99))
    with pytest.raises(GGUFError) as caught:
        gguf.open(raw)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_counts_are_refused_before_memory_is_taken():
    cases = [b.gguf(n_tensors=HUGE), array_head(b.STRING, 1 << 40), array_head(b.F64, 1 << 40)]
    cases.append(one_kv(b.kv_raw("k", b.STRING, struct.pack("<Q", 1 << 40))))
    cases.append(one_tensor(b.tensor("t", [1 << 40], I8, 0)))
    tracemalloc.start()
    try:
        for raw in cases:
            with pytest.raises(GGUFError):
                gguf.open(raw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"PK\x03\x04" + bytes(40), "zip archive or PyTorch"),
        (struct.pack("<Q", 40) + b'{"a": 1}', "safetensors"),
        (b"<!DOCTYPE html><html>", "error page of a download"),
        (b"\n <html>", "error page of a download"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b'{"error": "Not found"}', "error answer of a download"),
        (b"lmgg" + bytes(20), "from before GGUF"),
        (b"tjgg" + bytes(20), "from before GGUF"),
        (b"FUGG" + bytes(20), "bytes swapped"),
        (b"\x1f\x8b\x08" + bytes(20), "gzip"),
        (b"\x80\x02}q" + bytes(20), "pickle"),
        (bytes(64), "not finished"),
        (b"hello", "not a GGUF file$"),
        (b"GGUf" + bytes(60), "not a GGUF file$"),
    ],
)
def test_other_files_are_told_apart(start, hint):
    with pytest.raises(GGUFError, match=f"magic, byte 0: .*instead of b'GGUF'.*{hint}"):
        gguf.open(start)
