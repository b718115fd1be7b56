"""Freeing of large values in pieces, between which other threads run.

Python frees an object with all that it alone refers to in one go, during which no other thread runs: a value of a
hundred thousand lists takes tens of milliseconds. So a list of all its parts is made first, which keeps each of them
alive, and each is freed by itself.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from oxillama._util.json_tree import untracked

__all__ = ["MANY", "empty", "free", "parts_within"]

MANY = 1 << 12  # entries of one list or dict that are freed together
PIECE = 256  # entries of a dict or list that is emptied, which are freed together
FEW = 8  # of parts, each of which may have many entries


def parts_within(value: Any) -> list[Any]:
    """The lists and dicts of a JSON value, outer ones before inner ones; entries of large ones come in pieces of their
    own."""
    found = [value]
    parts: list[Any] = []
    for one in found:  # it grows meanwhile
        parts.append(one)
        if not isinstance(one, dict | list):
            continue
        if len(one) > MANY:
            parts += _pieces(one)
        found += [inner for inner in (one.values() if isinstance(one, dict) else one) if isinstance(inner, dict | list)]
    return parts


def _pieces(container: dict[Any, Any] | list[Any]) -> Iterator[list[Any]]:
    """The entries of a container, some at a time: keys and values of a dict."""
    for part in (container, container.values()) if isinstance(container, dict) else (container,):
        entries = iter(part)
        while piece := untracked(list(islice(entries, MANY))):
            yield piece


def free(parts: list[Any]) -> None:
    """Empties a list, the first entries first. Where nothing else refers to a value, it is freed with its parts."""
    parts.reverse()
    while parts:
        del parts[-FEW:]


def empty(*containers: list[Any] | dict[Any, Any]) -> None:
    """Empties lists and dicts from their ends, a few entries at a time."""
    for one in containers:
        while one:
            if isinstance(one, dict):
                for _ in range(min(PIECE, len(one))):
                    one.popitem()
            else:
                del one[-PIECE:]
