"""Reader of calls whose values are nested tags named after their keys, as MiniMax M3 writes them."""

import json
import re
from collections.abc import Generator
from typing import Any

from oxillama.chat.json_reader import Reading, matched, past_spaces, read_name, read_until
from oxillama.chat.patterns import Cursor
from oxillama.chat.shapes import NestedTags
from oxillama.chat.sink import Broken, CallSink, NotACall
from oxillama.chat.values import kind_of, property_of, resolved, value_json

__all__ = ["read_nested"]

_TAG = re.compile(r"<([^<>/\s][^<>]*)>")
MAX_NESTING = 64
MAX_TAG = 512


def read_nested(cursor: Cursor, shape: NestedTags, call_end: str, schemas: dict[str, Any], sink: CallSink) -> Reading:
    """A call from its name to its last argument. Raises NotACall if its head is none, Broken if an argument is."""
    name = yield from read_name(cursor)
    found = yield from matched(cursor, (shape.head_end,), cursor.at)
    if found is None:
        raise NotACall
    cursor.at = found[0]
    sink.open(name, "")
    reader = _Nested(cursor, shape, sink, schemas.get(name))
    while (key := (yield from reader.tag())) is not None:
        sink.key(key)
        yield from reader.value(key, property_of(reader.root, key), 1)
    sink.end_of_arguments()


class _Nested:
    """The values of one call."""

    __slots__ = ("cursor", "mark", "root", "shape", "sink")

    def __init__(self, cursor: Cursor, shape: NestedTags, sink: CallSink, root: Any) -> None:
        self.cursor, self.shape, self.sink, self.root = cursor, shape, sink, root
        self.mark = shape.mark

    def tag(self) -> Generator[None, None, str | None]:
        """The name of the tag that opens here, and moves behind it; None if none does."""
        cursor = self.cursor
        yield from past_spaces(cursor)
        while True:
            rest = cursor.text[cursor.at : cursor.at + len(self.mark) + MAX_TAG]
            if rest.startswith(self.mark):
                inner = rest[len(self.mark) :]
                found = _TAG.match(inner)
                if found:
                    cursor.at += len(self.mark) + found.end()
                    return found.group(1)
                if ">" in inner or (inner and inner[:1] != "<") or inner.startswith("</") or len(inner) >= MAX_TAG:
                    return None
            elif not self.mark.startswith(rest):
                return None
            if cursor.ended:
                return None
            yield

    def value(self, key: str, schema: Any, depth: int) -> Reading:
        """The value of an open tag, and moves behind its end."""
        if depth > MAX_NESTING:
            raise Broken("it nests too deeply")
        cursor, end = self.cursor, f"{self.mark}</{key}>"
        schema = resolved(schema, self.root)
        kind = kind_of(schema, self.root)
        if kind != "text":
            inner = yield from self._opens(end)
            if inner:
                yield from self._nested(key, end, schema, depth, inner == "end")
                return
        start = cursor.at
        if kind == "text":
            yield from read_until(self.cursor, end, self.sink.value)
            return
        search = start
        while (stop := cursor.text.find(end, search)) < 0:
            if cursor.ended:
                raise Broken("the text ends inside of it", cut=True)
            search = max(start, len(cursor.text) - len(end) + 1)
            yield
        self.sink.value(value_json(cursor.text[start:stop], kind))
        cursor.at = stop + len(end)

    def _opens(self, end: str) -> Generator[None, None, str]:
        """Whether a tag opens here ("tag"), the value is empty ("end"), or it is text ("")."""
        cursor = self.cursor
        while True:
            rest = cursor.text[cursor.at :].lstrip()
            if rest.startswith(end):
                return "end" if cursor.text.startswith(end, cursor.at) else ""
            if rest.startswith(self.mark + "<") and len(rest) > len(self.mark) + 1:
                if rest[len(self.mark) + 1] != "/":
                    return "tag"
                if not end.startswith(rest[: len(end)]):
                    return ""
            elif rest and not self.mark.startswith(rest[: len(self.mark)]):
                return ""
            if cursor.ended:
                raise Broken("the text ends inside of it", cut=True)
            yield

    def _nested(self, key: str, end: str, schema: Any, depth: int, empty: bool) -> Reading:
        """An object or a list, by its schema, or by the names of its tags."""
        cursor, sink, item = self.cursor, self.sink, self.shape.item
        types = schema.get("type") if isinstance(schema, dict) else None
        types = types if isinstance(types, list) else [types]
        if empty:
            cursor.at += len(end)
            sink.value("[]" if "array" in types else "{}" if "object" in types else '""')
            return
        opens, n = "", 0
        while (tag := (yield from self.tag())) is not None:
            listed = "array" in types or (tag == item and "object" not in types)
            if not n:
                opens = "[" if listed else "{"
            sink.value(
                (opens if not n else ", ") + ("" if opens == "[" else f"{json.dumps(tag, ensure_ascii=False)}: ")
            )
            inner = (
                schema.get("items")
                if opens == "[" and isinstance(schema, dict)
                else property_of(schema, tag, self.root)
            )
            yield from self.value(tag, inner, depth + 1)
            n += 1
        yield from past_spaces(cursor)
        found = yield from matched(cursor, (end,), cursor.at)
        if found is None:
            raise Broken(f"the argument {key!r} has no end", cut=cursor.ended and cursor.at >= len(cursor.text))
        cursor.at = found[0]
        sink.value("]" if opens == "[" else "}")
