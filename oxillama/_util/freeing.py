"""Freeing of large values in pieces, between which other threads run.

Python frees an object with all that it alone refers to in one go, during which no other thread runs: a value of a
hundred thousand lists takes tens of milliseconds. Here a list of all its parts is made first, which keeps each of them
alive, so that each is freed by itself.
"""

import gc
from collections.abc import Iterable
from itertools import islice
from typing import Any

__all__ = ["MANY", "free", "parts_within"]

MANY = 1 << 12  # entries of one list or dict that are freed together
PIECE = 256  # parts that are freed together
_CONTAINERS = frozenset((dict, list, tuple, set, frozenset))


def parts_within(roots: Iterable[Any], kinds: Iterable[type] = (), package: str | None = None) -> list[Any]:
    """The containers of Python within values, and other objects of `kinds`, each once, outer ones before inner ones.

    Entries of large ones come in pieces of their own. package: objects of its classes are containers, too.
    """
    followed = _CONTAINERS | frozenset(kinds)
    found: list[Any] = []
    seen: set[int] = set()
    todo: list[Any] = [list(roots)]
    for one in todo:  # it grows meanwhile
        found.append(one)
        large = type(one) in _CONTAINERS and len(one) > MANY
        for inner in _pieces(one) if large else (gc.get_referents(one),):
            if large:
                found.append(inner)
            for x in inner:
                kind = type(x)
                if kind not in followed and (package is None or not _is_of(kind, package)):
                    continue
                if id(x) not in seen:
                    seen.add(id(x))
                    todo.append(x)
    return found


def _pieces(container: Any) -> Iterable[list[Any]]:
    """The entries of a large container, some at a time: keys and values of a dict."""
    for part in (container, container.values()) if type(container) is dict else (container,):
        entries = iter(part)
        while piece := list(islice(entries, MANY)):
            yield piece


def _is_of(kind: type, package: str) -> bool:
    return kind is not type and str(kind.__module__).startswith(package)


def free(parts: list[Any]) -> None:
    """Empties a list of `parts_within`, the outer ones first. Nothing else may refer to the values any more."""
    parts.reverse()
    while parts:
        del parts[-PIECE:]
