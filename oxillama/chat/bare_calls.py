"""Calls without a mark: an answer that is nothing but JSON, alone or in a fence, and calls tools that were given.

Models that know another format than their template's, and small ones, write a call as an object, as a list of objects,
as several objects in a row, or as one of these in a fence of Markdown or between tags such as ``<tools>``. Such an
answer is a call if all of it is one: each object has the name of a tool and arguments that fit its schema, and no other
keys than those of a call. Everything else is text, which is known as early as the text tells.
"""

import re
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from oxillama.chat.arguments import MAX_DEPTH, Schema, faults
from oxillama.chat.calls import ARGUMENT_KEYS, read_json
from oxillama.chat.json_reader import Reading, matched, past_spaces
from oxillama.chat.json_scan import JsonError, JsonScanner
from oxillama.chat.layout import Layout
from oxillama.chat.patterns import Cursor, skip_spaces
from oxillama.chat.schema_check import check_schema
from oxillama.chat.sink import NotACall
from oxillama.errors import ConfigError

__all__ = ["FIRSTS", "BareCall", "checkable", "read_bare"]

FIRSTS = "{[`~<"  # the characters that such an answer may begin with
_FENCE = re.compile(r"(?P<mark>`{3,8}|~{3,8})[ \t]*[\w+.-]{0,32}[ \t]*(?=[\r\n{\[<])")
_TAG = re.compile(r"<(?P<name>[A-Za-z][\w-]{0,31})>")
_FENCE_BEGUN = re.compile(r"(?:`{1,8}|~{1,8})|(?:`{3,8}|~{3,8})[ \t]*[\w+.-]{0,32}[ \t]*")
_TAG_BEGUN = re.compile(r"<(?:[A-Za-z][\w-]{0,31})?")
_IN_STRING = re.compile(r'["\\\x00-\x1f]')  # what ends a string, escapes a character, or can't be in one
_SCALAR = re.compile(r"[-+.\w]{1,64}")
MAX_OPENING = 80  # characters; more than a fence or a tag has
MAX_WRAPS = 2  # a fence between tags, or tags in a fence
MAX_STRING = 512  # of a key, a name or an id
_LISTS = ("tool_calls",)  # keys whose value is a list of calls
_WRAPS = ("function", "tool_call")  # keys whose value is a call, or for the first its name
_KEYS = frozenset((*ARGUMENT_KEYS, *_LISTS, *_WRAPS, "name", "type", "id", "index"))


class BareCall(NamedTuple):
    """A call: its name, its arguments and their JSON text, and its own id, "" for none."""

    name: str
    arguments: dict[str, Any]
    text: str
    id: str


def read_bare(
    cursor: Cursor, tools: Mapping[str, Schema], form: Layout, fresh: bool
) -> Generator[None, None, list[BareCall] | None]:
    """The calls that the rest of the text is, once it has ended, with the cursor behind them. None, as soon as it can't
    be calls alone, with the cursor where it was.

    tools: schemas by the names of tools. form: the layout of the answer, whose own marks are read by their own rule.
    fresh: whether marks of its beginning may stand here.
    """
    start, reader = cursor.at, _Bare(cursor, tools, form)
    try:
        yield from _check_marks(cursor, form, fresh)
        yield from reader.items(lambda: _only_ends(cursor, form))
    except NotACall:
        cursor.at = start
        return None
    return reader.calls


def _check_marks(cursor: Cursor, form: Layout, fresh: bool) -> Reading:
    """Moves to the next character. Raises NotACall if no such answer begins with it, or a mark of the layout does."""
    c = yield from past_spaces(cursor)
    if not c or c not in FIRSTS:
        raise NotACall
    for pattern, _, only_fresh in form.marks:
        stands = pattern and isinstance(pattern[0], str) and (fresh or not only_fresh)
        if stands and (yield from matched(cursor, pattern, cursor.at)) is not None:
            raise NotACall


def _only_ends(cursor: Cursor, form: Layout) -> Generator[None, None, bool]:
    """Whether nothing but marks that end calls, the content or the turn follow, and moves behind them."""
    at = cursor.at
    while True:
        at = skip_spaces(cursor.text, at)
        if at == len(cursor.text):
            if cursor.ended:
                cursor.at = at
                return True
            yield
            continue
        for mark in form.closing_marks:
            found = yield from matched(cursor, (mark,), at)
            if found is not None:
                at = found[0]
                break
        else:
            return False


class _Bare:
    """The calls of one answer. Methods raise NotACall for what is none."""

    __slots__ = ("_cursor", "_form", "_longest", "_schemas", "_tools", "calls")

    def __init__(self, cursor: Cursor, tools: Mapping[str, Schema], form: Layout) -> None:
        self._cursor, self._tools, self._form = cursor, tools, form
        self._longest = max(MAX_STRING, 12 * max(map(len, tools), default=0) + 2)  # a tool's name, all of it escaped
        self._schemas: dict[str, Schema] = {}  # those that were needed, as far as they can be checked
        self.calls: list[BareCall] = []

    def items(self, over: Callable[[], Generator[None, None, bool]], depth: int = 0) -> Reading:
        """Objects, lists and what has them in a fence, one after another, up to where `over` finds an end."""
        yield from self._item(depth)
        while not (yield from over()):
            if (yield from past_spaces(self._cursor)) in (",", ";"):
                self._cursor.at += 1
            yield from self._item(depth)

    def _item(self, depth: int) -> Reading:
        c = yield from past_spaces(self._cursor)
        if c == "{":
            yield from self._call()
        elif c == "[":
            yield from self._list()
        elif c and c in FIRSTS and depth < MAX_WRAPS:
            yield from _check_marks(self._cursor, self._form, False)
            end = yield from self._opening()
            yield from self.items(lambda: self._closed(end), depth + 1)
        else:
            raise NotACall

    def _opening(self) -> Generator[None, None, str]:
        """The end of the fence or of the tags that open here, and moves behind what opens them."""
        cursor = self._cursor
        while True:
            text = cursor.text[cursor.at : cursor.at + MAX_OPENING]
            found = _TAG.match(text) if text[0] == "<" else _FENCE.match(text)
            if found is not None:
                cursor.at += found.end()
                return f"</{found['name']}>" if text[0] == "<" else str(found["mark"])
            if cursor.ended or len(text) == MAX_OPENING or not _may_open(text):
                raise NotACall
            yield

    def _closed(self, end: str) -> Generator[None, None, bool]:
        """Whether the end of a fence is here, and moves behind it. One at the end of the text may be missing."""
        cursor = self._cursor
        while (yield from past_spaces(cursor)):
            if cursor.text.startswith(end, cursor.at):
                cursor.at += len(end)
                return True
            if cursor.ended or not end.startswith(cursor.text[cursor.at : cursor.at + len(end)]):
                return False
            yield
        return True

    def _list(self) -> Reading:
        cursor = self._cursor
        while True:
            cursor.at += 1
            if (yield from past_spaces(cursor)) != "{":
                raise NotACall
            yield from self._call()
            c = yield from past_spaces(cursor)
            if c == "]":
                cursor.at += 1
                return
            if c != ",":
                raise NotACall

    def _call(self) -> Reading:
        """One object, with a call or with a list of them."""
        found = _Members()
        yield from self._members(found, wrapped=False)
        if found.listed:
            return
        arguments, text = _arguments(found.arguments)
        if not found.name or (arguments and arguments == self._tools[found.name]):  # its description, given back
            raise NotACall
        if next(faults(self._schema(found.name), arguments), None) is not None:
            raise NotACall
        self.calls.append(BareCall(found.name, arguments, text, found.id))

    def _schema(self, name: str) -> Schema:
        """The schema of a tool's arguments, as far as it can be checked."""
        if name not in self._schemas:
            self._schemas[name] = checkable(self._tools[name])
        return self._schemas[name]

    def _members(self, found: "_Members", wrapped: bool) -> Reading:
        """The members of an object, up to its closing brace. wrapped: it is the value of another's key."""
        cursor = self._cursor
        c, keys = ",", set[str]()
        while c == ",":
            cursor.at += 1
            key = yield from self._string()
            if key in keys or key not in _KEYS or (yield from past_spaces(cursor)) != ":":
                raise NotACall
            keys.add(key)
            cursor.at += 1
            yield from self._member(found, key, wrapped, alone=len(keys) == 1)
            c = yield from past_spaces(cursor)
            if c != "}" and (c != "," or found.listed):
                raise NotACall
        cursor.at += 1

    def _member(self, found: "_Members", key: str, wrapped: bool, alone: bool) -> Reading:
        c = yield from past_spaces(self._cursor)
        if key in ARGUMENT_KEYS and not found.arguments:
            found.arguments = yield from self._value()
            if found.arguments[0] not in '{"n':
                raise NotACall
        elif key == "name" or (key == "function" and c == '"'):
            yield from self._name(found)
        elif key in _WRAPS and c == "{" and not wrapped and not found.name:
            yield from self._members(found, wrapped=True)
        elif key in _LISTS and c == "[" and not wrapped and alone:
            found.listed = True
            yield from self._list()
        elif key == "type":
            if (yield from self._string()) != "function":
                raise NotACall
        elif key in ("id", "index"):
            text = yield from self._value()
            if text[0] in "{[" or len(text) > MAX_STRING:
                raise NotACall
            if key == "id" and text[0] == '"':
                found.id = _decoded(text)
        else:
            raise NotACall

    def _name(self, found: "_Members") -> Reading:
        name = yield from self._string()
        if found.name or name not in self._tools:
            raise NotACall
        found.name = name

    def _string(self) -> Generator[None, None, str]:
        """A short string, decoded, and moves behind it."""
        if (yield from past_spaces(self._cursor)) != '"':
            raise NotACall
        return _decoded((yield from self._text(self._longest)))

    def _value(self) -> Generator[None, None, str]:
        """The JSON text of the next value, and moves behind it."""
        c = yield from past_spaces(self._cursor)
        if c and c in "{[":
            return (yield from self._nested())
        if c == '"':
            return (yield from self._text())
        return (yield from self._scalar())

    def _nested(self) -> Generator[None, None, str]:
        cursor, scanner, start = self._cursor, JsonScanner(), self._cursor.at
        while True:
            text, at, done = cursor.text, cursor.at, False
            try:
                while at < len(text) and not done:
                    done = scanner.step(text[at])
                    if text[at] in "{[" and scanner.depth > MAX_DEPTH:
                        raise NotACall
                    at += 1
            except JsonError:
                raise NotACall from None
            cursor.at = at
            if done:
                return text[start:at]
            yield from self._more()

    def _text(self, most: int | None = None) -> Generator[None, None, str]:
        """A string as it is written, of at most so many characters."""
        cursor, start = self._cursor, self._cursor.at
        at = start + 1
        while True:
            while (found := _IN_STRING.search(cursor.text, at)) and found.group() == "\\":
                at = found.end() + 1  # behind what is escaped, which may not have come yet
            if found:
                if found.group() != '"' or (most is not None and found.start() - start > most):
                    raise NotACall
                cursor.at = found.end()
                return cursor.text[start : cursor.at]
            at = max(at, len(cursor.text))
            if most is not None and at - start > most:
                raise NotACall
            yield from self._more()

    def _scalar(self) -> Generator[None, None, str]:
        cursor = self._cursor
        while True:
            found = _SCALAR.match(cursor.text, cursor.at)
            if found is None:
                raise NotACall
            if found.end() < len(cursor.text):
                cursor.at = found.end()
                return found.group()
            yield from self._more()

    def _more(self) -> Reading:
        """Waits for more of the text, which must go on."""
        if self._cursor.ended:
            raise NotACall
        yield


class _Members:
    """Members of an object's call: its name, its id, the JSON text of its arguments; whether it is a list."""

    __slots__ = ("arguments", "id", "listed", "name")

    def __init__(self) -> None:
        self.name = self.id = self.arguments = ""
        self.listed = False


def _may_open(text: str) -> bool:
    """Whether a text may be the beginning of what opens a fence, or of a tag."""
    if text[0] == "<":
        return _TAG_BEGUN.fullmatch(text) is not None
    return _FENCE_BEGUN.fullmatch(text) is not None


def _decoded(text: str) -> str:
    """The text of a JSON string."""
    try:
        return str(read_json(text))
    except ValueError:
        raise NotACall from None


def _arguments(text: str) -> tuple[dict[str, Any], str]:
    """Arguments and their JSON text, which may stand in a string."""
    if text[:1] == '"':
        text = _decoded(text)
    try:
        found = {} if text == "null" else read_json(text)
    except ValueError:
        raise NotACall from None
    if not isinstance(found, dict):
        raise NotACall
    return found, "{}" if text == "null" else text


def checkable(schema: Schema) -> Schema:
    """A schema as far as arguments can be checked by it: without the properties that can't be, if there are some."""
    try:
        check_schema(schema)
        return schema
    except ConfigError:
        own = schema if isinstance(schema, Mapping) else {}
    required = own.get("required")
    properties = own.get("properties")
    found: dict[str, Any] = {"properties": {}}
    if isinstance(required, list):
        found["required"] = [key for key in required if isinstance(key, str)]
    for key, inner in properties.items() if isinstance(properties, Mapping) else ():
        try:
            check_schema(inner)
            found["properties"][key] = inner
        except ConfigError:
            found["properties"][key] = True
    if own.get("additionalProperties") is False and "patternProperties" not in own:
        found["additionalProperties"] = False
    return found
