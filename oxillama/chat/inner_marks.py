"""Places of a text where a call opens without its outer mark, and marks that are left over behind calls."""

import json
import re
from collections.abc import Generator, Mapping
from typing import Any

from oxillama.chat.arguments import faults
from oxillama.chat.bare_calls import checkable
from oxillama.chat.calls import ARGUMENT_KEYS
from oxillama.chat.json_reader import Reading
from oxillama.chat.layout import Layout, needed_end
from oxillama.chat.openings import SPACES, Heads, InnerOpening
from oxillama.chat.patterns import Cursor, More, skip_spaces
from oxillama.chat.shapes import JsonCall
from oxillama.chat.value_ends import end_of_closed, past_any, spaces_from

__all__ = ["InnerMarks"]


def fits(text: str, shape: JsonCall, schemas: Mapping[str, Any]) -> bool:
    """Whether JSON objects in a row, or a list of them, all call tools with arguments that fit the tools' schemas."""
    decoder, at, found = json.JSONDecoder(), 0, list[Any]()
    try:
        while (at := skip_spaces(text, at)) < len(text):
            value, at = decoder.raw_decode(text, at)
            found += value if isinstance(value, list) else [value]
        return all(_is_call(one, shape, schemas) for one in found)
    except (ValueError, RecursionError, AttributeError, TypeError):  # which no object with a call gives
        return False


def _is_call(value: Any, shape: JsonCall, schemas: Mapping[str, Any]) -> bool:
    inner = value.get(shape.wrapper, value)
    if shape.name_is_key:
        ((name, arguments),) = inner.items()
    else:
        name = inner.get(shape.key("name"))
        keys = (shape.key("arguments"), *ARGUMENT_KEYS)
        arguments = next((inner[key] for key in keys if key in inner), {})
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    is_tool = isinstance(name, str) and name in schemas and isinstance(arguments, dict)
    return is_tool and next(faults(checkable(schemas[name]), arguments), None) is None


class InnerMarks:
    """Inner openings in the text of one answer.

    characters: the pattern of a character with which any mark of the format begins. closers: the marks that may be left
    over behind all calls; between: behind one of several.
    """

    __slots__ = (
        "_begin", "_behind_call", "_calls", "_cursor", "_heads", "_json", "_known", "_schemas", "between", "characters",
        "closers",
    )  # fmt: skip

    def __init__(self, cursor: Cursor, form: Layout, schemas: Mapping[str, Any]) -> None:
        self._cursor, self._heads = cursor, Heads(form.inner, schemas)
        self._calls, self._schemas = form.calls, schemas
        self._begin, self._behind_call = 0, False
        self._json, self._known = (-1, 0), 0  # where JSON begins and ends; up to where it was looked at
        patterns = filter(None, (form.first_characters.pattern, self._heads.characters))
        self.characters = re.compile("|".join(patterns))
        self.closers, end = form.closers, needed_end(form.calls) if form.calls else ""
        self.between = tuple(mark for mark in form.closers if mark != end)

    def begin(self, *, behind_call: bool = False) -> None:
        """A text begins where the cursor is, behind reasoning or calls."""
        self._begin, self._behind_call = self._cursor.at, behind_call

    @property
    def first(self) -> int:
        """The place of the first character of that text that is no space."""
        text = self._cursor.text
        while self._begin < len(text) and text[self._begin] in SPACES:
            self._begin += 1
        return self._begin

    def find(self, at: int) -> tuple[int, InnerOpening, int] | int | None:
        """(place, opening, where the call is read from) at a place, the place where that isn't decided, or None."""
        if not self._heads:
            return None
        text = self._cursor.text
        first = at <= self.first
        begins = text[at - 1 : at] == "\n" or (first and not self._behind_call)
        found = self._heads.find(text, at, self._cursor.ended, begins, first)
        if isinstance(found, More):
            return at
        return None if found is None else (at, *found)

    def is_call(self, start: int, opening: InnerOpening) -> Generator[None, None, bool]:
        """Whether a call opens at a place: a JSON object is one only if its closing mark stands behind it, and its
        arguments fit."""
        if not opening.closed:
            return True
        if start < self._known:  # within JSON that was looked at
            return False
        closed, end, self._known = yield from end_of_closed(self._cursor, start, opening.closed)
        self._json = start, end
        shape = None if self._calls is None else self._calls.shape
        if not closed or not isinstance(shape, JsonCall):
            return False
        return fits(self._cursor.text[start:end], shape, self._schemas)

    def behind(self, start: int) -> int:
        """Place from which to look for marks behind the place of one that opens no call: not within JSON that is
        text."""
        return max(start + 1, self._json[1]) if self._json[0] == start else start + 1

    def past_closers(self, closers: tuple[str, ...]) -> Reading:
        """Moves past closing marks that are left over, or past the beginning of one at the text's end."""
        cursor = self._cursor
        while closers:
            place = yield from spaces_from(cursor, cursor.at)
            end = yield from past_any(cursor, closers, place)
            if end < 0:
                rest = cursor.text[place:]
                if cursor.ended and any(mark.startswith(rest) for mark in closers):
                    cursor.at = len(cursor.text)
                return
            cursor.at = end
