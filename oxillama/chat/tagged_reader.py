"""Reader of calls whose arguments stand between marks, one by one."""

import re
from collections.abc import Generator
from typing import Any

from oxillama.chat.json_reader import Reading, matched, past_spaces, read_name
from oxillama.chat.patterns import Cursor, first_mark
from oxillama.chat.shapes import CallFormat, Tagged
from oxillama.chat.sink import Broken, CallSink, NotACall
from oxillama.chat.value_ends import ToolEnds, ValueEnds, held, scan_json, spaces_from
from oxillama.chat.value_marks import CDATA, cdata_ends
from oxillama.chat.values import Kind, escaped, kind_of, property_of, value_json

__all__ = ["read_tagged"]


def read_tagged(cursor: Cursor, calls: CallFormat, call_end: str, tools: ToolEnds, sink: CallSink) -> Reading:
    """A call from its name to its last argument. Raises NotACall if its head is none, Broken if an argument is.

    call_end: the marks that must end it.
    """
    shape = calls.shape
    assert isinstance(shape, Tagged)
    name = yield from read_name(cursor)
    if shape.head_end:
        found = yield from matched(cursor, shape.head_end, cursor.at)
        if found is None:
            raise NotACall
        cursor.at = found[0]
    c = yield from past_spaces(cursor)
    if c and c not in (shape.begin.strip()[:1], calls.call_end.strip()[:1]):
        raise NotACall  # a text that quotes the marks
    sink.open(name, "")
    schema = tools.schemas.get(name)
    ends = tools.of(name, call_end)
    what, cursor.at = yield from ends.follows(cursor, cursor.at)
    while what == "argument":
        yield from _read_argument(cursor, calls, ends, schema, sink)
        what, cursor.at = yield from ends.follows(cursor, cursor.at)
    if not what:
        raise Broken("neither an argument nor its end follows", cut=cursor.ended and ends.is_cut(cursor.rest()))
    sink.end_of_arguments()


def _read_argument(cursor: Cursor, calls: CallFormat, ends: ValueEnds, schema: Any, sink: CallSink) -> Reading:
    shape = calls.shape
    assert isinstance(shape, Tagged)
    found = yield from matched(cursor, (shape.begin.strip(),), cursor.at)
    if found is None:
        raise Broken("an argument has no beginning")
    cursor.at = found[0]
    key = yield from _read_key(cursor, shape)
    found = yield from matched(cursor, shape.key_end, cursor.at)
    if found is None:
        raise Broken(f"the argument {key!r} has no value", cut=cursor.ended)
    cursor.at = found[0]
    kind = _kind(shape, found[1], schema, key)
    sink.key(key)
    yield from _skip(cursor, shape.trail)
    yield from _read_value(cursor, calls, ends, kind, sink)


def _kind(shape: Tagged, holes: dict[str, str], schema: Any, key: str) -> Kind:
    if shape.text_type and "type" in holes:
        return "text" if holes["type"] == shape.text_type else "json"
    return kind_of(property_of(schema, key), schema)


def _read_key(cursor: Cursor, shape: Tagged) -> Generator[None, None, str]:
    """The name of an argument, of any length: a bound would depend on the pieces in which the text comes."""
    mark = first_mark(shape.key_end)
    start = search = cursor.at
    while (end := cursor.text.find(mark, search)) < 0:
        if cursor.ended:
            raise Broken("the text ends inside of it", cut=True)
        search = max(start, len(cursor.text) - len(mark) + 1)
        yield
    cursor.at = end
    key = cursor.text[start:end].strip()
    if shape.begin.strip() in key:
        raise Broken("an argument's key has no end")
    return key


def _skip(cursor: Cursor, text: str) -> Generator[None, None, bool]:
    """Moves past a text if it is there, and returns whether it is."""
    while len(cursor.text) - cursor.at < len(text) and not cursor.ended:
        if not text.startswith(cursor.text[cursor.at :]):
            return False
        yield
    if cursor.text.startswith(text, cursor.at):
        cursor.at += len(text)
        return True
    return False


def _read_cdata(cursor: Cursor, calls: CallFormat, kind: Kind, sink: CallSink) -> Reading:
    """A value in a CDATA section of XML, which has been opened."""
    texts = kind == "text"
    sent = start = search = cursor.at
    ends = cdata_ends(calls)
    marks = tuple(space + mark for space, mark in ends)
    pattern = re.compile("|".join(map(re.escape, marks)))
    longest = max(map(len, marks))
    if texts:
        sink.value('"')
    while (found := pattern.search(cursor.text, search)) is None:
        if cursor.ended:
            _send(sink, cursor.text[sent:], texts)
            raise Broken("the text ends inside of it", cut=True)
        search = max(start, len(cursor.text) - longest + 1)
        sent = _send_up_to(cursor.text, sent, held(cursor.text, start, marks), sink, texts)
        yield
    _end_value(cursor.text, start, sent, found.start(), kind, sink)
    space, mark = ends[marks.index(found.group())]
    cursor.at = found.end() if mark == ends[0][1] else found.start() + len(space)


def _read_value(cursor: Cursor, calls: CallFormat, ends: ValueEnds, kind: Kind, sink: CallSink) -> Reading:
    """A value up to what ends it."""
    if (yield from _skip(cursor, CDATA)):
        yield from _read_cdata(cursor, calls, kind, sink)
        return
    start = sent = search = cursor.at
    texts = kind == "text"
    if texts:
        sink.value('"')
    else:
        search = yield from _behind_json(cursor, ends, start)
    while True:
        found = ends.search(cursor.text, start, search)
        if found is None:
            if cursor.ended:
                _send(sink, cursor.text[sent:], texts)
                raise Broken("the text ends inside of it", cut=True)
            search = ends.search_again(cursor.text, start, search)
            sent = _send_up_to(cursor.text, sent, ends.held(cursor.text, start), sink, texts)
            yield
            continue
        stop = yield from ends.decide(cursor, found, start)
        if isinstance(stop, tuple):
            break
        search = stop
    _end_value(cursor.text, start, sent, stop[0], kind, sink)
    cursor.at = stop[1]


def _behind_json(cursor: Cursor, ends: ValueEnds, start: int) -> Generator[None, None, int]:
    """Place from which to search for the end of a value that is no text: JSON may hold marks in its strings."""
    state, end = yield from scan_json(cursor, start)
    if state != "whole":
        return start
    place = yield from spaces_from(cursor, end)
    while (found := ends.search(cursor.text, start, place)) is None and not cursor.ended:
        if ends.held(cursor.text, place) > place:
            break
        yield
    return place if found is not None and found.start() == place else start


def _end_value(text: str, start: int, sent: int, stop: int, kind: Kind, sink: CallSink) -> None:
    """Gives the rest of a text, or the whole of another value."""
    if kind == "text":
        _send(sink, text[sent:stop], True)
        sink.value('"')
    else:
        sink.value(value_json(text[start:stop], kind))


def _send_up_to(text: str, sent: int, stop: int, sink: CallSink, texts: bool) -> int:
    if not texts or stop <= sent:
        return sent
    _send(sink, text[sent:stop], texts)
    return stop


def _send(sink: CallSink, text: str, texts: bool) -> None:
    if texts and text:
        sink.value(escaped(text))
