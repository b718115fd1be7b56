"""Reader of calls whose arguments stand between marks, one by one."""

from collections.abc import Generator
from typing import Any

from oxillama.chat.json_reader import Reading, matched, past_spaces, read_name
from oxillama.chat.patterns import Cursor, More, Pattern, first_mark, match, skip_spaces
from oxillama.chat.shapes import Tagged
from oxillama.chat.sink import Broken, CallSink, NotACall
from oxillama.chat.values import Kind, escaped, kind_of, property_of, value_json

__all__ = ["read_tagged"]

MAX_KEY = 512
CDATA, CDATA_END = "<![CDATA[", "]]>"


def read_tagged(cursor: Cursor, shape: Tagged, call_end: str, schemas: dict[str, Any], sink: CallSink) -> Reading:
    """A call from its name to its last argument. Raises NotACall if its head is none, Broken if an argument is."""
    name = yield from read_name(cursor)
    if shape.head_end:
        found = yield from matched(cursor, shape.head_end, cursor.at)
        if found is None:
            raise NotACall
        cursor.at = found[0]
    c = yield from past_spaces(cursor)
    if c and c not in (shape.begin.strip()[:1], call_end.strip()[:1]):
        raise NotACall  # a text that quotes the marks
    sink.open(name, "")
    schema = schemas.get(name)
    while (follows := (yield from _follows(cursor, shape, call_end, cursor.at))) == "argument":
        yield from _read_argument(cursor, shape, call_end, schema, sink)
    if not follows:
        raise Broken("neither an argument nor its end follows")
    sink.end_of_arguments()


def _follows(cursor: Cursor, shape: Tagged, call_end: str, at: int) -> Generator[None, None, str]:
    """What stands at a place: "argument", "end" of the call or of the text, or "" for anything else."""
    while True:
        found = _decided(cursor, shape, call_end, at)
        if found is not None:
            return found
        yield


def _decided(cursor: Cursor, shape: Tagged, call_end: str, at: int) -> str | None:
    text, ended = cursor.text, cursor.ended
    at = skip_spaces(text, at)
    if at == len(text):
        return "end" if ended else None
    undecided = False
    for mark, what in ((shape.begin, "argument"), (call_end, "end")):
        if not mark.strip():
            continue
        found = match((mark.strip(),), text, at, ended)
        if isinstance(found, More):
            undecided = True
        elif found is not None:
            return what
    return None if undecided else ""


def _read_argument(cursor: Cursor, shape: Tagged, call_end: str, schema: Any, sink: CallSink) -> Reading:
    yield from past_spaces(cursor)
    found = yield from matched(cursor, (shape.begin.strip(),), cursor.at)
    if found is None:
        raise Broken("an argument has no beginning")
    cursor.at = found[0]
    key = yield from _read_key(cursor, shape.key_end)
    found = yield from matched(cursor, shape.key_end, cursor.at)
    if found is None:
        raise Broken(f"the argument {key!r} has no value", cut=cursor.ended)
    cursor.at = found[0]
    kind = _kind(shape, found[1], schema, key)
    sink.key(key)
    yield from _skip(cursor, shape.trail)
    yield from _read_value(cursor, shape, call_end, kind, sink)


def _kind(shape: Tagged, holes: dict[str, str], schema: Any, key: str) -> Kind:
    if shape.text_type and "type" in holes:
        return "text" if holes["type"] == shape.text_type else "json"
    return kind_of(property_of(schema, key), schema)


def _read_key(cursor: Cursor, key_end: Pattern) -> Generator[None, None, str]:
    mark = first_mark(key_end)
    start = cursor.at
    while (end := cursor.text.find(mark, start)) < 0:
        if cursor.ended or len(cursor.text) - start > MAX_KEY:
            raise Broken("the text ends inside of it" if cursor.ended else "an argument has no key", cut=cursor.ended)
        yield
    cursor.at = end
    return cursor.text[start:end].strip()


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


def _read_cdata(cursor: Cursor, shape: Tagged, mark: str, kind: Kind, sink: CallSink) -> Reading:
    """A value in a CDATA section of XML, which has been opened."""
    end = CDATA_END + mark
    texts = kind == "text"
    sent = start = cursor.at
    if texts:
        sink.value('"')
    search = start
    while (stop := cursor.text.find(end, search)) < 0:
        if cursor.ended:
            _send(sink, cursor.text[sent:], texts)
            raise Broken("the text ends inside of it", cut=True)
        search = max(start, len(cursor.text) - len(end) + 1)
        sent = _send_up_to(cursor.text, sent, _held(cursor.text, end, ""), sink, texts)
        yield
    if texts:
        _send(sink, cursor.text[sent:stop], texts)
        sink.value('"')
    else:
        sink.value(value_json(cursor.text[start:stop], kind))
    cursor.at = stop + len(CDATA_END)
    found = yield from matched(cursor, (shape.value_end.strip(),), cursor.at)
    cursor.at = found[0] if found else cursor.at + len(mark)


def _read_value(cursor: Cursor, shape: Tagged, call_end: str, kind: Kind, sink: CallSink) -> Reading:
    """A value up to the mark that ends it: one behind which the call goes on or ends, since texts may hold the mark."""
    mark = first_mark((shape.value_end,))
    if (yield from _skip(cursor, CDATA)):
        yield from _read_cdata(cursor, shape, mark, kind, sink)
        return
    start = sent = search = cursor.at
    texts = kind == "text"
    if texts:
        sink.value('"')
    while True:
        end = cursor.text.find(mark, search)
        if end < 0:
            if cursor.ended:
                _send(sink, cursor.text[sent:], texts)
                raise Broken("the text ends inside of it", cut=True)
            search = max(search, len(cursor.text) - len(mark) + 1)
            sent = _send_up_to(cursor.text, sent, _held(cursor.text, mark, shape.lead), sink, texts)
            yield
            continue
        found = yield from matched(cursor, (shape.value_end.strip(),), end)
        if found is not None and (yield from _follows(cursor, shape, call_end, found[0])):
            break
        search = end + 1
    stop = end - len(shape.lead) if cursor.text.endswith(shape.lead, start, end) else end
    if texts:
        _send(sink, cursor.text[sent:stop], texts)
        sink.value('"')
    else:
        sink.value(value_json(cursor.text[start:stop], kind))
    cursor.at = found[0]


def _held(text: str, mark: str, lead: str) -> int:
    """Where the part of a text begins that may be the beginning of its end."""
    end = lead + mark
    for n in range(min(len(end) - 1, len(text)), 0, -1):
        if end.startswith(text[-n:]):
            return len(text) - n
    return min(len(text), _held(text, mark, "")) if lead else len(text)


def _send_up_to(text: str, sent: int, stop: int, sink: CallSink, texts: bool) -> int:
    if not texts or stop <= sent:
        return sent
    _send(sink, text[sent:stop], texts)
    return stop


def _send(sink: CallSink, text: str, texts: bool) -> None:
    if texts and text:
        sink.value(escaped(text))
