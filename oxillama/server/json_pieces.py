"""JSON of large answers, made in pieces: other threads run between them, and parts are made when they are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

__all__ = ["Body", "Rows", "as_json", "in_parts", "in_pieces", "pieces_of", "written", "written_parts"]

PIECE = 1 << 14  # characters that are written at a time, while no other thread runs
NUMBERS = 1 << 11  # the same of numbers
MOST_MEMBERS = 64  # of an object that is written at a time, if its values are short
SHORT = 1 << 10  # characters
Body = dict[str, Any]  # an object of an answer
_PLAIN = {int, float, bool, type(None)}


class Rows:
    """A list of which each entry is made when it is written, and not kept: shape(item) for each item."""

    def __init__(self, items: Sequence[Any], shape: Callable[[Any], Any]) -> None:
        self._items, self._shape = items, shape

    def __iter__(self) -> Iterator[Any]:
        return map(self._shape, self._items)

    def __len__(self) -> int:
        return len(self._items)


def _as_list(value: object) -> list[Any]:
    """Rows as a list, which `json` takes. Raises TypeError for anything else."""
    if isinstance(value, Rows):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


# JSON of a value. For a text it is many times as fast as for an object: most events of a stream differ in one text.
as_json: Callable[[object], str] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_as_list
).encode


def in_pieces(value: object) -> str:
    """`as_json` of a large value. For a thread of its own."""
    return "".join(pieces_of(value))


def written(value: object) -> bytes:
    """A value as JSON: the bytes that `json.dumps` gives. For a thread of its own."""
    return b"".join(text.encode() for text in pieces_of(value))


def written_parts(value: object, size: int) -> list[bytes]:
    """`written` of a large value, in parts of so many bytes: in one, copying it would hold all threads up."""
    return in_parts((text.encode() for text in pieces_of(value)), size)


def in_parts(pieces: Iterable[bytes], size: int) -> list[bytes]:
    """Bytes in parts of this size, of which the last may be smaller."""
    parts, rest, n = [], [b""], 0
    for piece in pieces:
        rest.append(piece)
        n += len(piece)
        if n >= size:
            whole = b"".join(rest)
            end = n - n % size
            parts += [whole[i : i + size] for i in range(0, end, size)]
            rest, n = [whole[end:]], n - end
    if n or not parts:
        parts.append(b"".join(rest))
    return parts


def pieces_of(value: object) -> Iterator[str]:
    """The JSON of a value, piece by piece."""
    if isinstance(value, dict) and not _is_short(value):
        yield "{"
        for i, (name, one) in enumerate(value.items()):
            yield f"{',' if i else ''}{as_json(name)}:"
            yield from pieces_of(one)
        yield "}"
    elif isinstance(value, Rows):
        yield from _listed(value)
    elif isinstance(value, list | tuple):
        yield from _listed(value) if not _is_plain(value) else _plain(value)
    elif isinstance(value, str) and len(value) > PIECE:
        yield '"'
        for start in range(0, len(value), PIECE):
            yield as_json(value[start : start + PIECE])[1:-1]
        yield '"'
    else:
        yield as_json(value)


def _listed(values: Any) -> Iterator[str]:
    yield "["
    for i, one in enumerate(values):
        if i:
            yield ","
        yield from pieces_of(one)
    yield "]"


def _plain(values: Sequence[Any]) -> Iterator[str]:
    """A list of numbers, many at a time."""
    yield "["
    for start in range(0, len(values), NUMBERS):
        yield ("," if start else "") + as_json(values[start : start + NUMBERS])[1:-1]
    yield "]"


def _is_plain(values: Sequence[Any]) -> bool:
    return all({*map(type, values[i : i + PIECE])} <= _PLAIN for i in range(0, len(values), PIECE))


def _is_short(value: dict[str, Any]) -> bool:
    """Whether an object is written at once: it has few members, all of them short."""
    return len(value) <= MOST_MEMBERS and all(
        type(one) in _PLAIN or (type(one) is str and len(one) <= SHORT) for one in value.values()
    )
