"""Reader of calls in Python's syntax."""

import ast
import json
import re
from collections.abc import Generator

from oxillama.chat.calls import read_json
from oxillama.chat.json_reader import Reading, more, past_spaces, read_name
from oxillama.chat.patterns import Cursor
from oxillama.chat.sink import Broken, CallSink, NotACall

__all__ = ["read_python"]

_OPEN, _CLOSE = "([{", ")]}"
MAX_NESTING = 64
_CONSTANTS = {"true": True, "false": False, "null": None}
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def read_python(cursor: Cursor, sink: CallSink) -> Reading:
    """A call from its name to its closing parenthesis. Raises NotACall without a name and a parenthesis."""
    name = yield from read_name(cursor)
    if (yield from more(cursor, cursor.at)) != "(":
        raise NotACall
    cursor.at += 1
    c = yield from past_spaces(cursor)
    if c != ")":
        key = yield from _read_key(cursor, first=True)
    sink.open(name, "")
    while c != ")":
        sink.key(key)
        yield from _read_value(cursor, sink)
        c = yield from past_spaces(cursor)
        if c == ",":
            cursor.at += 1
            c = yield from past_spaces(cursor)
            if c != ")":
                key = yield from _read_key(cursor, first=False)
    cursor.at += 1
    sink.end_of_arguments()


def _read_key(cursor: Cursor, first: bool) -> Generator[None, None, str]:
    try:
        key = yield from read_name(cursor)
        if (yield from past_spaces(cursor)) != "=":
            raise NotACall
    except NotACall:
        if first:
            raise
        raise Broken("an argument has no name", cut=cursor.ended) from None
    cursor.at += 1
    return key


def _read_value(cursor: Cursor, sink: CallSink) -> Reading:
    """A literal, up to the comma or the parenthesis behind it."""
    yield from past_spaces(cursor)
    start = cursor.at
    depth = 0
    while True:
        c = yield from more(cursor, cursor.at)
        if not c:
            raise Broken("the text ends inside of it", cut=True)
        if c in "'\"":
            yield from _past_string(cursor, c)
            continue
        if c in _OPEN:
            depth += 1
        elif depth and c in _CLOSE:
            depth -= 1
        elif not depth and c in ",)":
            break
        if depth > MAX_NESTING:
            raise Broken("it nests too deeply")
        cursor.at += 1
    sink.value(_as_json(cursor.text[start : cursor.at].strip()))


def _past_string(cursor: Cursor, quote: str) -> Reading:
    cursor.at += 1
    while (c := (yield from more(cursor, cursor.at))) and c != quote:
        cursor.at += 1 + (c == "\\")
    if not c:
        raise Broken("the text ends inside of it", cut=True)
    cursor.at += 1


def _as_json(text: str) -> str:
    """The JSON of a literal of Python, or of JSON, whose strings may have line breaks. Raises Broken for others."""
    for written in (text, _STRING.sub(_without_breaks, text)):
        try:
            value = ast.literal_eval(_Constants().visit(ast.parse(written, mode="eval")))
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    try:
        read_json(text)
    except ValueError:
        raise Broken(f"{text[:40]!r} is no literal") from None
    return text


def _without_breaks(string: re.Match[str]) -> str:
    """A string with escapes in the place of line breaks, as templates write texts between quotes."""
    return string.group().replace("\n", "\\n").replace("\r", "\\r")


class _Constants(ast.NodeTransformer):
    """JSON's names of constants as Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_CONSTANTS[node.id]) if node.id in _CONSTANTS else node
