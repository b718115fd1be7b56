"""Metadata entries: values with stored type and bytes, made from a file by the parser, or from Python values here."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError
from oxillama.gguf.arrays import GGUFArray
from oxillama.gguf.values import DTYPES, FLOATS, INTEGERS, STRUCTS, ValueType, shown

__all__ = ["Entry", "Value", "make_entry", "value_type"]

Value = bool | int | float | str | GGUFArray


class Entry(NamedTuple):
    """A metadata value. ``raw`` is its encoding (for an array: item type, count, items) without the value type."""

    type: ValueType
    value: Value
    raw: NDArray[np.uint8]

    def described(self) -> str:
        """The type in words, for messages."""
        return f"ARRAY of {self.value.item_type.name}" if isinstance(self.value, GGUFArray) else self.type.name


def value_type(given: ValueType | int | str) -> ValueType:
    """The value type named ``given``; ConfigError if there is none."""
    try:
        return ValueType[given.upper()] if isinstance(given, str) else ValueType(given)
    except (KeyError, ValueError):
        known = ", ".join(t.name for t in ValueType)
        raise ConfigError(f"unknown metadata value type {given!r}; known: {known}") from None


def make_entry(key: str, value: object, type: ValueType | None = None) -> Entry:
    """The entry of a Python value.

    ``value``: bool, int, float, str, an array of GGUF, numpy array of one dimension, or a sequence of one of those
    types (strings may be bytes there). ``type``: that of the value, or of an array's items; by default BOOL, UINT32,
    INT32, UINT64 or INT64 (the first that holds all integers), FLOAT32 (FLOAT64 beyond its range), STRING, or that of
    the array given.

    Raises:
        ConfigError: the value is of another type, or doesn't fit ``type``; the message names the key.
    """
    if isinstance(value, np.generic):
        type = type if type is not None else _TYPE_OF_DTYPE.get(value.dtype.newbyteorder("<").str)
        value = value.item()
    if isinstance(value, GGUFArray) and type in (None, value.item_type):
        return _array_entry(value.item_type, len(value), value.payload, value.where)
    if isinstance(value, np.ndarray):
        return _numpy_entry(key, value, type)
    if isinstance(value, bool | int | float | str):
        if type is None:
            type = _infer(key, [value])
        raw = _encode(key, value, type)
        # The value that a reader of the file gets: a float may have been rounded.
        decoded = STRUCTS[type].unpack(raw)[0] if type in FLOATS else value
        return Entry(type, decoded, np.frombuffer(raw, np.uint8))
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | dict | set):
        items = list(value)
        item_type = type if type is not None else _infer(key, items)
        payload = b"".join(_encode(f"{key}[{i}]", item, item_type, in_array=True) for i, item in enumerate(items))
        return _array_entry(item_type, len(items), np.frombuffer(payload, np.uint8), f"key {shown(key)}")
    raise ConfigError(
        f"{key}: {shown(value)} is a {value.__class__.__name__}; bool, int, float, str or a sequence of them is needed"
    )


def _array_entry(item_type: ValueType, count: int, payload: NDArray[np.uint8], where: str) -> Entry:
    head = STRUCTS[ValueType.UINT32].pack(item_type) + STRUCTS[ValueType.UINT64].pack(count)
    raw = np.concatenate([np.frombuffer(head, np.uint8), payload])
    raw.setflags(write=False)
    return Entry(ValueType.ARRAY, GGUFArray(item_type, count, raw[len(head) :], where), raw)


_SINGLE_MIN = float(np.finfo(np.float32).smallest_normal)
_SINGLE_MAX = float(np.finfo(np.float32).max)
_TYPE_OF_DTYPE = {d.str: t for t, d in DTYPES.items()}


def _numpy_entry(key: str, array: NDArray[Any], type: ValueType | None) -> Entry:
    found = _TYPE_OF_DTYPE.get(array.dtype.newbyteorder("<").str)
    if array.ndim != 1:
        raise ConfigError(f"{key}: an array of shape {array.shape}; metadata arrays have one dimension")
    if found is None or type not in (None, found):
        return make_entry(key, array.tolist(), type)
    packed = np.ascontiguousarray(array, DTYPES[found])
    return _array_entry(found, len(packed), packed.view(np.uint8), f"key {shown(key)}")


def _infer(key: str, items: list[Any]) -> ValueType:
    """The type that holds all the items; an empty array is of INT32."""
    kinds = {bool if isinstance(x, bool) else str if isinstance(x, bytes) else x.__class__ for x in items}
    if not kinds:
        return ValueType.INT32
    if kinds == {bool}:
        return ValueType.BOOL
    if kinds == {str}:
        return ValueType.STRING
    if kinds <= {int, float} and float in kinds:
        return ValueType.FLOAT32 if all(_is_single(x) for x in items) else ValueType.FLOAT64
    if kinds == {int}:
        low, high = min(items), max(items)
        for t in (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64):
            if INTEGERS[t][0] <= low and high <= INTEGERS[t][1]:
                return t
        raise ConfigError(f"{key}: {low} … {high} don't fit into any integer type of GGUF (64 bits)")
    names = ", ".join(sorted(k.__name__ for k in kinds))
    raise ConfigError(f"{key}: items of {names}; a metadata array holds bools, ints, floats or strings, of one type")


def _is_single(x: float) -> bool:
    """Whether FLOAT32 holds x, though perhaps rounded: neither too large nor so small that digits are lost."""
    return x == 0 or not math.isfinite(x) or _SINGLE_MIN <= abs(x) <= _SINGLE_MAX


def _encode(key: str, value: Any, type: ValueType, in_array: bool = False) -> bytes:
    """The bytes of a value that isn't an array; ConfigError if it doesn't fit the type."""
    if type is ValueType.STRING and isinstance(value, str | bytes if in_array else str):
        try:
            text = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError as e:
            raise ConfigError(f"{key}: the text can't be written as UTF-8: {e.reason} at {e.start}") from None
        return STRUCTS[ValueType.UINT64].pack(len(text)) + text
    if type is ValueType.BOOL and isinstance(value, bool):
        return STRUCTS[type].pack(value)
    if type in INTEGERS and isinstance(value, int | np.integer) and not isinstance(value, bool):
        least, most = INTEGERS[type]
        if not least <= value <= most:
            raise ConfigError(f"{key}: {value} doesn't fit into {type.name} ({least} to {most})")
        return STRUCTS[type].pack(int(value))
    if type in FLOATS and isinstance(value, int | float | np.floating) and not isinstance(value, bool):
        try:
            raw = STRUCTS[type].pack(float(value))
        except OverflowError:
            raise ConfigError(f"{key}: {shown(value)} is too large for {type.name}") from None
        return raw
    raise ConfigError(f"{key}: {shown(value)} is a {value.__class__.__name__}, which is not written as {type.name}")
