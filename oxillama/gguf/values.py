"""Types of GGUF metadata values, their sizes, and the display of a file's names in messages."""

import struct
from enum import IntEnum

import numpy as np

__all__ = ["DTYPES", "FLOATS", "INTEGERS", "STRUCTS", "ValueType", "printable", "shown"]


class ValueType(IntEnum):
    """Ids of the metadata value types."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# Sizes of the values of fixed size. A bool is a byte that is 0 or 1.
STRUCTS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<B"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}

DTYPES: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}

# Smallest and largest value.
INTEGERS: dict[ValueType, tuple[int, int]] = {
    t: (0, 2 ** (8 * d.itemsize) - 1)
    if d.kind == "u"
    else (-(2 ** (8 * d.itemsize - 1)), 2 ** (8 * d.itemsize - 1) - 1)
    for t, d in DTYPES.items()
    if d.kind in "ui"
}
FLOATS = frozenset({ValueType.FLOAT32, ValueType.FLOAT64})


def shown(name: object, limit: int = 100) -> str:
    """``repr`` of a value from a file, cut to ``limit`` characters: safe to print, never a page long."""
    text = repr(name[: limit + 1] if isinstance(name, str | bytes) else name)
    return text if len(text) <= limit + 2 else f"{text[:limit]}…"


def printable(text: str) -> str:
    """``text`` with control characters and line breaks escaped, safe for a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
