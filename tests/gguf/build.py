"""GGUF bytes from struct.pack alone, so that what the package reads and writes is compared with something else."""

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(type_id: int, value: object) -> bytes:
    return text(value) if type_id == STRING else struct.pack("<" + CODES[type_id], value)


def kv(key: str | bytes, type_id: int, value: object) -> bytes:
    return text(key) + struct.pack("<I", type_id) + scalar(type_id, value)


def kv_raw(key: str | bytes, type_id: int, payload: bytes = b"") -> bytes:
    return text(key) + struct.pack("<I", type_id) + payload


def kv_array(key: str, item_type: int, items: Sequence[object], count: int | None = None) -> bytes:
    head = struct.pack("<IIQ", ARRAY, item_type, len(items) if count is None else count)
    return text(key) + head + b"".join(scalar(item_type, x) for x in items)


def tensor(name: str | bytes, ne: Sequence[int], type_id: int, offset: int, n_dims: int | None = None) -> bytes:
    """A tensor info; ``ne`` has the innermost dimension first, as in the file."""
    dims = struct.pack(f"<{len(ne)}Q", *ne)
    return (
        text(name)
        + struct.pack("<I", len(ne) if n_dims is None else n_dims)
        + dims
        + struct.pack("<IQ", type_id, offset)
    )


def gguf(
    kvs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    n_kvs: int | None = None,
    n_tensors: int | None = None,
    magic: bytes = b"GGUF",
) -> bytes:
    """A file; without data it ends with the header, not padded."""
    counts = (len(tensors) if n_tensors is None else n_tensors, len(kvs) if n_kvs is None else n_kvs)
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(kvs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data if data else head


def small() -> bytes:
    """A little of everything: each value type, arrays, three tensors."""
    kvs = [
        kv("general.architecture", STRING, "llama"),
        kv("a.u8", U8, 250),
        kv("a.i8", I8, -3),
        kv("a.u16", U16, 65000),
        kv("a.i16", I16, -300),
        kv("a.u32", U32, 4_000_000_000),
        kv("a.i32", I32, -70000),
        kv("a.f32", F32, 0.5),
        kv("a.bool", BOOL, 1),
        kv("a.u64", U64, 1 << 63),
        kv("a.i64", I64, -(1 << 62)),
        kv("a.f64", F64, 1e-300),
        kv_array("a.strings", STRING, ["", "x", "é日"]),
        kv_array("a.ints", I16, [-1, 2, 3]),
        kv_array("a.floats", F32, [0.25, -1.5]),
        kv_array("a.bools", BOOL, [1, 0]),
        kv_array("a.empty", STRING, []),
    ]
    tensors = [tensor("w", [2, 3], 0, 0), tensor("q", [32, 2], 8, 32), tensor("i", [5], 24, 128)]
    return gguf(kvs, tensors, struct.pack("<6f", *range(6)) + bytes(8) + bytes(range(68)) + bytes(28) + bytes(range(5)))
