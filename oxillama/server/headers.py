"""Headers of answers: the one place where values are encoded, and bounded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["MOST_OF_A_VALUE", "encoded", "header_text", "listed"]

MOST_OF_A_VALUE = 1024  # bytes
_MORE = 32  # bytes that the number of further entries may take
_UNSAID = re.compile(r"[^\x20-\x7e]")


def header_text(value: str) -> str:
    """A text as the value of a header: a kilobyte of ASCII at most, "?" in the place of all other characters.

    Blanks at its ends are no part of a value (RFC 9110, section 5.5), and some clients and servers refuse them.
    """
    return _UNSAID.sub("?", value[:MOST_OF_A_VALUE]).strip(" ")


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI has them: whatever a value holds, it is one that HTTP allows, and no longer than a kilobyte."""
    return [(name.lower().encode("ascii"), header_text(value).encode("ascii")) for name, value in headers.items()]


def listed(entries: Iterable[str], n_entries: int, separator: str) -> str:
    """Entries as the value of a header, each whole; the number of those that have no room ends it.

    n_entries: all that there were, of which `entries` may be a part.
    """
    found: list[str] = []
    size = 0
    for entry in entries:
        said = header_text(entry)
        size += len(said) + len(separator)
        if size > MOST_OF_A_VALUE - _MORE:
            break
        found.append(said)
    more = n_entries - len(found)
    return separator.join([*found, *([f"and {more} more"] if more else [])])
