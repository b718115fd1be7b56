"""Reader of calls in braces with bare keys and texts in quotes of their own, as Gemma 4 writes them."""

from collections.abc import Generator

from oxillama.chat.calls import read_json
from oxillama.chat.json_reader import Reading, past_spaces, read_name, read_until
from oxillama.chat.patterns import Cursor
from oxillama.chat.sink import Broken, CallSink, NotACall
from oxillama.chat.values import escaped

__all__ = ["read_braces"]

MAX_NESTING = 64
_ENDS = frozenset(",}]")


def read_braces(cursor: Cursor, quote: str, sink: CallSink) -> Reading:
    """A call from its name to its closing brace. Raises NotACall without a name and a brace."""
    name = yield from read_name(cursor)
    if (yield from past_spaces(cursor)) != "{":
        raise NotACall
    sink.open(name, "")
    yield from _read_object(cursor, quote, sink, 1)


def _read_object(cursor: Cursor, quote: str, sink: CallSink, depth: int) -> Reading:
    cursor.at += 1
    before = "{"
    c = yield from past_spaces(cursor)
    while c != "}" or before != "{":
        key = yield from _read_key(cursor, quote)
        sink.arguments(f'{before}"{escaped(key)}": ')
        yield from _read_value(cursor, quote, sink, depth)
        before = ", "
        c = yield from past_spaces(cursor)
        if c == "}":
            break
        if c != ",":
            raise _unexpected(c)
        cursor.at += 1
    sink.arguments("{}" if before == "{" else "}")
    cursor.at += 1


def _read_key(cursor: Cursor, quote: str) -> Generator[None, None, str]:
    yield from past_spaces(cursor)
    start = cursor.at
    while (end := cursor.text.find(":", start)) < 0:
        if cursor.ended:
            raise Broken("the text ends inside of it", cut=True)
        yield
    cursor.at = end + 1
    key = cursor.text[start:end].strip()
    return key.removeprefix(quote).removesuffix(quote).strip('"')


def _read_value(cursor: Cursor, quote: str, sink: CallSink, depth: int) -> Reading:
    if depth > MAX_NESTING:
        raise Broken("it nests too deeply")
    c = yield from past_spaces(cursor)
    while not cursor.ended and len(cursor.text) - cursor.at < len(quote) and quote.startswith(cursor.rest()):
        yield
    if cursor.text.startswith(quote, cursor.at):
        cursor.at += len(quote)
        yield from read_until(cursor, quote, sink.arguments)
    elif c == "{":
        yield from _read_object(cursor, quote, sink, depth + 1)
    elif c == "[":
        yield from _read_list(cursor, quote, sink, depth + 1)
    else:
        yield from _read_scalar(cursor, sink)


def _read_list(cursor: Cursor, quote: str, sink: CallSink, depth: int) -> Reading:
    cursor.at += 1
    sink.arguments("[")
    c = yield from past_spaces(cursor)
    while c != "]":
        yield from _read_value(cursor, quote, sink, depth)
        c = yield from past_spaces(cursor)
        if c == ",":
            cursor.at += 1
            sink.arguments(", ")
        elif c != "]":
            raise _unexpected(c)
    sink.arguments("]")
    cursor.at += 1


def _read_scalar(cursor: Cursor, sink: CallSink) -> Reading:
    start = end = cursor.at
    while True:
        while end < len(cursor.text) and cursor.text[end] not in _ENDS:
            end += 1
        if end < len(cursor.text) or cursor.ended:
            break
        yield
    text = cursor.text[start:end].strip()
    try:
        read_json(text)
    except ValueError:
        cut = cursor.ended and end == len(cursor.text)
        raise Broken("the text ends inside of it" if cut else f"{text[:40]!r} is no value", cut=cut) from None
    sink.arguments(text)
    cursor.at = end


def _unexpected(c: str) -> Broken:
    return Broken(f"{c!r} where a comma or an end should be" if c else "the text ends inside of it", cut=not c)
