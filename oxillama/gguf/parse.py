"""GGUF parser: a file's bytes to its metadata and tensor infos, each number checked before it is used."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import UnsupportedModelError
from oxillama.gguf import _scan, foreign
from oxillama.gguf.arrays import GGUFArray
from oxillama.gguf.cursor import Cursor
from oxillama.gguf.entries import Entry
from oxillama.gguf.formats import REMOVED, Format, format_by_id
from oxillama.gguf.values import STRUCTS, ValueType, shown

__all__ = ["DEFAULT_ALIGNMENT", "MAX_ALIGNMENT", "MAX_KEY", "MAX_NAME", "Parsed", "RawTensor", "parse"]

DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_KEY = 65535  # bytes, by the specification
MAX_NAME = 1024  # bytes; writers keep to 63
MAX_DIMS = 4
# Files in use have some hundred keys and, with experts one by one, some ten thousand tensors. Beyond these limits
# parsing alone would take seconds.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
# The least bytes of a key with its value (length, one byte, type, value) and of a tensor info (length, one byte,
# number of dims, one dim, type, offset).
_LEAST_KEY = 8 + 1 + 4 + 1
_LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8


class RawTensor(NamedTuple):
    """A tensor info: ``shape`` outermost dimension first, ``offset`` from the start of the tensor data."""

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    nbytes: int


class Parsed(NamedTuple):
    """One GGUF file; ``header_end`` is where its tensor infos end, ``data_start`` where its tensor data begin."""

    version: int
    alignment: int
    entries: dict[str, Entry]
    tensors: dict[str, RawTensor]
    header_end: int
    data_start: int


def parse(data: NDArray[np.uint8], label: str, check: Callable[[], None]) -> Parsed:
    """Parse a file's bytes, uint8 ``[n]``. ``check`` is for arrays that are read later (`GGUFArray`).

    Raises:
        GGUFError: the bytes are not a GGUF file of version 2 or 3, little-endian, whole and consistent.
        UnsupportedModelError: a tensor is of an unknown format.
    """
    cursor = Cursor(data, label, check)
    foreign.check_magic(cursor)
    version = foreign.read_version(cursor)
    n_tensors = _count(cursor, "tensor count", MAX_TENSORS, _LEAST_TENSOR)
    n_keys = _count(cursor, "key count", MAX_KEYS, _LEAST_KEY)
    entries: dict[str, Entry] = {}
    for i in range(n_keys):
        _parse_entry(cursor, i, entries)
    aligned = entries.get("general.alignment")
    alignment = DEFAULT_ALIGNMENT if aligned is None else int(aligned.value)  # type: ignore[arg-type]
    tensors: dict[str, RawTensor] = {}
    for i in range(n_tensors):
        _parse_tensor(cursor, i, alignment, tensors)
    header_end = cursor.position
    data_start = header_end + -header_end % alignment
    _check_places(cursor, tensors, data_start)
    return Parsed(version, alignment, entries, tensors, header_end, data_start)


def _count(cursor: Cursor, what: str, limit: int, least: int) -> int:
    at = cursor.position
    count = cursor.u64(what)
    if count > limit:
        cursor.fail(what, f"{count} is more than the {limit} that are allowed", at)
    if count * least > cursor.left:
        cursor.fail(what, f"{count} need at least {count * least} bytes, the file has {cursor.left} more", at)
    return count


def _parse_entry(cursor: Cursor, i: int, entries: dict[str, Entry]) -> None:
    at = cursor.position
    key = cursor.string(f"key {i}", MAX_KEY)
    if not key:
        cursor.fail(f"key {i}", "is empty", at)
    what = f"key {shown(key)}"
    if key in entries:
        cursor.fail(what, "is there twice", at)
    entry = entries[key] = _parse_value(cursor, what)
    if key == "general.alignment":
        _check_alignment(cursor, entry, cursor.position - len(entry.raw))


def _parse_type(cursor: Cursor, what: str) -> ValueType:
    at = cursor.position
    number = cursor.u32(f"type of {what}")
    try:
        return ValueType(number)
    except ValueError:
        cursor.fail(what, f"value type {number} is unknown; there are 0 to {max(ValueType)}", at)


def _parse_value(cursor: Cursor, what: str) -> Entry:
    value_type = _parse_type(cursor, what)
    start = cursor.position
    value: bool | int | float | str | GGUFArray
    if value_type is ValueType.ARRAY:
        value = _parse_array(cursor, what)
    elif value_type is ValueType.STRING:
        value = cursor.string(what)
    else:
        value = cursor.number(STRUCTS[value_type], what)
        if value_type is ValueType.BOOL:
            if value not in (0, 1):
                cursor.fail(what, f"a BOOL of {value}; 0 and 1 are allowed", start)
            value = bool(value)
    raw = cursor.data[start : cursor.position]
    return Entry(value_type, value, raw if value_type is ValueType.ARRAY else raw.copy())


def _parse_array(cursor: Cursor, what: str) -> GGUFArray:
    at = cursor.position
    item_type = _parse_type(cursor, f"items of {what}")
    if item_type is ValueType.ARRAY:
        cursor.fail(what, "an array of arrays, which is not supported", at)
    count_at = cursor.position
    count = cursor.u64(f"length of {what}")
    # A string takes no less than its length.
    size = 8 if item_type is ValueType.STRING else STRUCTS[item_type].size
    if count * size > cursor.left:
        needed = f"{count} items of {item_type.name} need {count * size} bytes or more"
        cursor.fail(what, f"{needed}, the file has {cursor.left} more", count_at)
    if item_type is not ValueType.STRING:
        payload = cursor.skip(count * size, what)
        if item_type is ValueType.BOOL and count and payload.max() > 1:
            bad = int(np.argmax(payload > 1))
            cursor.fail(what, f"item {bad} is a BOOL of {payload[bad]}; 0 and 1 are allowed", count_at + 8 + bad)
    else:
        start = cursor.position
        length, index = _scan.skip_strings(cursor.data[start:], count)
        if index != count:
            cursor.fail(what, f"string {index} of {count} doesn't fit into what is left of the file", start + length)
        payload = cursor.skip(length, what)
    return GGUFArray(item_type, count, payload, f"{cursor.label}: {what}", cursor.check)


def _check_alignment(cursor: Cursor, entry: Entry, at: int) -> None:
    what = "key 'general.alignment'"
    if entry.type is not ValueType.UINT32:
        cursor.fail(what, f"holds {entry.described()}; UINT32 is needed", at)
    value = int(entry.value)  # type: ignore[arg-type]
    if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        cursor.fail(what, f"{value} is not a power of two of at most {MAX_ALIGNMENT}", at)


def _parse_tensor(cursor: Cursor, i: int, alignment: int, tensors: dict[str, RawTensor]) -> None:
    at = cursor.position
    name = cursor.string(f"name of tensor {i}", MAX_NAME)
    if not name:
        cursor.fail(f"name of tensor {i}", "is empty", at)
    what = f"tensor {shown(name)}"
    if name in tensors:
        cursor.fail(what, "is there twice", at)
    shape, n_values = _parse_shape(cursor, what)
    at = cursor.position
    found = _parse_format(cursor, what)
    if shape[-1] % found.block_values:
        message = f"rows of {shape[-1]} values; {found.name} needs a multiple of {found.block_values}"
        cursor.fail(what, message, at)
    at = cursor.position
    offset = cursor.u64(f"offset of {what}")
    if offset % alignment:
        cursor.fail(what, f"offset {offset} is not a multiple of the alignment {alignment}", at)
    tensors[name] = RawTensor(name, shape, found, offset, found.nbytes(n_values))


def _parse_shape(cursor: Cursor, what: str) -> tuple[tuple[int, ...], int]:
    at = cursor.position
    n_dims = cursor.u32(f"number of dimensions of {what}")
    if not 1 <= n_dims <= MAX_DIMS:
        cursor.fail(what, f"{n_dims} dimensions; 1 to {MAX_DIMS} are allowed", at)
    at = cursor.position
    dims = [cursor.u64(f"dimension {d} of {what}") for d in range(n_dims)]
    n_values = 1
    for d in dims:
        n_values *= d
    if not n_values:
        cursor.fail(what, f"dimensions {dims}: one is 0", at)
    if n_values >= 1 << 63:
        cursor.fail(what, f"dimensions {dims}: {n_values} values are more than 2**63 - 1", at)
    return tuple(reversed(dims)), n_values


def _parse_format(cursor: Cursor, what: str) -> Format:
    at = cursor.position
    type_id = cursor.u32(f"type of {what}")
    found = format_by_id(type_id)
    if found is None:
        removed = f" ({REMOVED[type_id]}, which ggml has removed)" if type_id in REMOVED else ""
        raise UnsupportedModelError(f"{cursor.label}: {what}, byte {at}: unknown tensor type {type_id}{removed}")
    return found


def _check_places(cursor: Cursor, tensors: dict[str, RawTensor], data_start: int) -> None:
    """Checks that tensors lie within the file without overlap. A file without tensors needn't be padded to its data."""
    end, before = 0, ""
    for t in sorted(tensors.values(), key=lambda t: t.offset):
        start = data_start + t.offset
        if t.nbytes > cursor.n_bytes - start:
            message = f"{t.nbytes} bytes of data at offset {t.offset} end beyond the file of {cursor.n_bytes} bytes"
            cursor.fail(f"tensor {shown(t.name)}", f"{message}: it is truncated or damaged", start)
        if t.offset < end:
            cursor.fail(f"tensor {shown(t.name)}", f"offset {t.offset} overlaps {before}, which ends at {end}", start)
        end, before = t.offset + t.nbytes, f"tensor {shown(t.name)}"
