"""Reader of calls whose values are nested tags named after their keys, as MiniMax M3 writes them."""

import json
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from oxillama.chat.json_reader import Reading, matched, past_spaces, read_name
from oxillama.chat.patterns import Cursor, skip_spaces
from oxillama.chat.shapes import CallFormat, NestedTags
from oxillama.chat.sink import Broken, CallSink, NotACall
from oxillama.chat.value_ends import ToolEnds, held, past_any, spaces_from
from oxillama.chat.value_marks import argument_names, value_marks
from oxillama.chat.values import Kind, escaped, kind_of, property_of, resolved, value_json

__all__ = ["read_nested"]

_TAG = re.compile(r"<([^<>/\s][^<>]*)>")
MAX_NESTING = 64
MAX_TAG = 512


def read_nested(cursor: Cursor, calls: CallFormat, tools: ToolEnds, sink: CallSink) -> Reading:
    """A call from its name to its last argument. Raises NotACall if its head is none, Broken if an argument is."""
    shape = calls.shape
    assert isinstance(shape, NestedTags)
    name = yield from read_name(cursor)
    found = yield from matched(cursor, (shape.head_end,), cursor.at)
    if found is None:
        raise NotACall
    cursor.at = found[0]
    sink.open(name, "")
    reader = _Nested(cursor, calls, tools, name, sink)
    scope = _Scope(tools.names(name))
    while not (yield from reader.opens()) and (key := (yield from reader.tag())) is not None:
        sink.key(key)
        yield from reader.value(key, property_of(reader.root, key), scope)
        yield from reader.past_ends(key)
    if not (yield from reader.ends()):
        raise Broken("neither an argument nor its end follows", cut=cursor.ended and reader.is_cut())
    sink.end_of_arguments()


@dataclass(frozen=True, slots=True)
class _Scope:
    """Tags around a value. known: those that may stand beside it, or beside what it stands in, and so not in a text.
    open: those that it stands in."""

    known: frozenset[str]
    open: tuple[str, ...] = ()

    def inside(self, key: str, names: frozenset[str]) -> "_Scope":
        """The scope of the values in a tag that may have tags of these names."""
        return _Scope(self.known | names, (*self.open, key))


class _Nested:
    """The values of one call."""

    __slots__ = (
        "_call_end", "_closers", "_next_call", "_opened", "_stops", "cursor", "mark", "most", "root", "shape", "sink",
    )  # fmt: skip

    def __init__(self, cursor: Cursor, calls: CallFormat, tools: ToolEnds, name: str, sink: CallSink) -> None:
        """name: of the tool that is called."""
        assert isinstance(calls.shape, NestedTags)
        self.cursor, self.shape, self.sink, self.root = cursor, calls.shape, sink, tools.schemas.get(name)
        self.mark = calls.shape.mark
        self.most = max(MAX_TAG, tools.longest(name) + 2)  # characters of a tag
        self._call_end, self._closers = calls.call_end.strip(), tools.closers
        self._next_call, self._opened = value_marks(calls).next_call, value_marks(calls).opened
        self._stops = re.compile(rf"{re.escape(self.mark)}<(/?)([^<>]*)>")

    def tag(self, skip: frozenset[str] = frozenset()) -> Generator[None, None, str | None]:
        """The name of the tag that opens here, and moves behind it; None if none does, or one of `skip`."""
        cursor = self.cursor
        yield from past_spaces(cursor)
        while True:
            rest = cursor.text[cursor.at : cursor.at + len(self.mark) + self.most]
            if rest.startswith(self.mark):
                inner = rest[len(self.mark) :]
                found = _TAG.match(inner)
                if found:
                    if found.group(1) in skip:
                        return None
                    cursor.at += len(self.mark) + found.end()
                    return found.group(1)
                if ">" in inner or (inner and inner[:1] != "<") or inner.startswith("</") or len(inner) >= self.most:
                    return None
            elif not self.mark.startswith(rest):
                return None
            if cursor.ended:
                return None
            yield

    def past_ends(self, key: str) -> Reading:
        """Moves behind ends of a tag that come again."""
        while True:
            at = yield from spaces_from(self.cursor, self.cursor.at)
            end = yield from past_any(self.cursor, (self._end(key),), at)
            if end < 0:
                return
            self.cursor.at = end

    def _end(self, key: str) -> str:
        return f"{self.mark}</{key}>"

    def opens(self) -> Generator[None, None, bool]:
        """Whether another call opens here, so that the end of this one is missing."""
        at = yield from spaces_from(self.cursor, self.cursor.at)
        return (yield from past_any(self.cursor, self._opened, at)) >= 0

    def ends(self) -> Generator[None, None, bool]:
        """Whether the call or the text ends here."""
        at = yield from spaces_from(self.cursor, self.cursor.at)
        if at == len(self.cursor.text) or (yield from self.opens()):
            return True
        return (yield from past_any(self.cursor, (self._call_end, *self._closers), at)) >= 0

    def is_cut(self) -> bool:
        """Whether the text ends within a mark."""
        rest = self.cursor.rest().lstrip()
        return len(rest) < self.most and (f"{self.mark}<".startswith(rest) or ">" not in rest[len(self.mark) :])

    def value(self, key: str, schema: Any, scope: _Scope) -> Reading:
        """The value of an open tag, and moves behind its end."""
        if len(scope.open) >= MAX_NESTING:
            raise Broken("it nests too deeply")
        schema = resolved(schema, self.root)
        kind = kind_of(schema, self.root)
        if kind != "text":
            inner = yield from self._opens(self._end(key), self._foreign(schema, kind, scope))
            if inner:
                yield from self._nested(key, schema, kind, scope, inner == "end")
                return
        yield from self._text(key, scope, kind)

    def _foreign(self, schema: Any, kind: Kind, scope: _Scope) -> frozenset[str]:
        """The tags that can't stand in a value that is no text: they show that its end is missing."""
        names = frozenset(argument_names(schema))
        if "array" in _types(schema):
            return scope.known - {self.shape.item}
        return scope.known - names if names or ("object" not in _types(schema) and kind == "json") else frozenset()

    def _text(self, key: str, scope: _Scope, kind: Kind) -> Reading:
        """A value that is no tag: up to its end, to a tag that can't stand in it, or to the end of the call."""
        cursor, texts = self.cursor, kind == "text"
        start = sent = search = cursor.at
        if texts:
            self.sink.value('"')
        while True:
            found = self._stops.search(cursor.text, search)
            if found is None:
                stop = len(cursor.text) if cursor.ended else self._held(start)
                if texts and stop > sent:
                    self.sink.value(escaped(cursor.text[sent:stop]))
                    sent = stop
                if cursor.ended:
                    raise Broken("the text ends inside of it", cut=True)
                search = max(search, stop)
                yield
                continue
            behind = yield from self._decide(found, key, scope)
            if behind >= 0:
                break
            search = max(found.start() + 1, ~behind)
        stop = found.start()
        if behind == stop and stop > start and cursor.text[stop - 1] == "\n":
            stop -= 1
        self.sink.value(escaped(cursor.text[sent:stop]) + '"' if texts else value_json(cursor.text[start:stop], kind))
        cursor.at = behind

    def _held(self, start: int) -> int:
        """Up to which place the text is the value's, whatever comes."""
        text = self.cursor.text
        at = text.rfind(f"{self.mark}<", max(start, len(text) - len(self.mark) - self.most - 1))
        place = at if at >= 0 and ">" not in text[at + len(self.mark) :] else held(text, start, (f"{self.mark}<",))
        return place - 1 if place > start and text[place - 1] == "\n" else place

    def _decide(self, found: "re.Match[str]", key: str, scope: _Scope) -> Generator[None, None, int]:
        """The place behind a value that a tag ends; or ~place, from which to search on."""
        at, (closes, name) = found.start(), found.groups()
        if closes and name == key:
            return found.end()
        if name in (scope.open if closes else scope.known):
            return at
        if not closes:
            return ~found.end()
        behind = yield from self._past_closers(at)
        return at if behind < 0 else ~max(behind, found.end())

    def _past_closers(self, at: int) -> Generator[None, None, int]:
        """-1 where the text ends behind the marks of a call's end, or another call begins; else the place behind."""
        cursor, longest = self.cursor, max(map(len, self._next_call), default=0)
        while True:
            rest = cursor.text[at : at + longest]
            if any(rest.startswith(text) for text in self._next_call):
                return -1
            if not cursor.ended and any(text.startswith(rest) for text in self._next_call):
                yield
                continue
            end = yield from past_any(cursor, self._closers, at)
            if end < 0:
                return at
            at = yield from spaces_from(cursor, end)
            if at == len(cursor.text):
                return -1

    def _opens(self, end: str, foreign: frozenset[str]) -> Generator[None, None, str]:
        """Whether a tag opens here ("tag"), the value is empty ("end"), or it is text ("")."""
        cursor, at = self.cursor, self.cursor.at
        while True:
            at = skip_spaces(cursor.text, at)
            rest = cursor.text[at : at + len(self.mark) + self.most + len(end)]
            if rest.startswith(end):
                return "end" if at == cursor.at else ""
            if rest.startswith(self.mark + "<") and len(rest) > len(self.mark) + 1:
                if rest[len(self.mark) + 1] != "/":
                    name = rest[len(self.mark) + 1 :].partition(">")
                    if name[1] or len(name[0]) >= self.most or cursor.ended:
                        return "" if name[0] in foreign else "tag"
                elif not end.startswith(rest[: len(end)]):
                    return ""
            elif rest and not self.mark.startswith(rest[: len(self.mark)]):
                return ""
            if cursor.ended:
                raise Broken("the text ends inside of it", cut=True)
            yield

    def _nested(self, key: str, schema: Any, kind: Kind, scope: _Scope, empty: bool) -> Reading:
        """An object or a list, by its schema, or by the names of its tags."""
        cursor, sink, item = self.cursor, self.sink, self.shape.item
        types, foreign = _types(schema), self._foreign(schema, kind, scope)
        if empty:
            cursor.at += len(self._end(key))
            sink.value("[]" if "array" in types else "{}" if "object" in types else '""')
            return
        opens, n = "", 0
        names = frozenset(argument_names(schema))
        while (tag := (yield from self.tag(foreign))) is not None:
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
            yield from self.value(tag, inner, scope.inside(key, names | ({tag} if opens == "[" else set())))
            yield from self.past_ends(tag)
            n += 1
        yield from past_spaces(cursor)
        found = yield from matched(cursor, (self._end(key),), cursor.at)
        if found is not None:
            cursor.at = found[0]
        elif not (n and (yield from self._shows_end(foreign, scope))):
            raise Broken(f"the argument {key!r} has no end", cut=cursor.ended and cursor.at >= len(cursor.text))
        sink.value("]" if opens == "[" else "}")

    def _shows_end(self, foreign: frozenset[str], scope: _Scope) -> Generator[None, None, bool]:
        """Whether what stands here shows that the end of an object or a list is missing."""
        at = self.cursor.at
        key = yield from self.tag()
        self.cursor.at = at
        if key is not None:
            return key in foreign
        ends = tuple(map(self._end, scope.open))
        return (yield from past_any(self.cursor, ends, at)) >= 0 or (yield from self._past_closers(at)) < 0


def _types(schema: Any) -> list[Any]:
    types = schema.get("type") if isinstance(schema, dict) else None
    return types if isinstance(types, list) else [types]
