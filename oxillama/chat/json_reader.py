"""Readers of calls that are JSON objects, or a name and then a JSON object."""

from collections.abc import Callable, Generator

from oxillama.chat.calls import ARGUMENT_KEYS, read_json
from oxillama.chat.json_scan import JsonError, JsonScanner
from oxillama.chat.patterns import NAME, Cursor, More, Pattern, match, skip_spaces
from oxillama.chat.shapes import JsonCall
from oxillama.chat.sink import Broken, CallSink, NotACall
from oxillama.chat.values import escaped

__all__ = ["Reading", "read_arguments", "read_name", "read_object", "read_until"]

Reading = Generator[None, None, None]
MAX_NAME = 256
_FIRST_KEYS = frozenset(("type", "function", "id", "index", "name"))


def read_until(cursor: Cursor, mark: str, put: Callable[[str], None]) -> Reading:
    """A text up to a mark, as JSON, in pieces as it comes; the cursor is behind the mark then.

    Raises Broken if the text ends without it.
    """
    put('"')
    while (end := cursor.text.find(mark, cursor.at)) < 0:
        stop = len(cursor.text)
        if not cursor.ended:  # what may be the beginning of the mark waits
            stop -= next((n for n in range(len(mark) - 1, 0, -1) if cursor.text.endswith(mark[:n])), 0)
        if stop > cursor.at:
            put(escaped(cursor.text[cursor.at : stop]))
            cursor.at = stop
        if cursor.ended:
            raise Broken("the text ends inside of it", cut=True)
        yield
    put(escaped(cursor.text[cursor.at : end]) + '"')
    cursor.at = end + len(mark)


def more(cursor: Cursor, at: int) -> Generator[None, None, str]:
    """The character at a place; "" where the text has ended."""
    while at >= len(cursor.text):
        if cursor.ended:
            return ""
        yield
    return cursor.text[at]


def past_spaces(cursor: Cursor) -> Generator[None, None, str]:
    """Skips spaces. Returns the character that follows; "" for none."""
    while True:
        cursor.at = skip_spaces(cursor.text, cursor.at)
        if cursor.at < len(cursor.text):
            return cursor.text[cursor.at]
        if cursor.ended:
            return ""
        yield


def matched(cursor: Cursor, pattern: Pattern, at: int) -> Generator[None, None, "tuple[int, dict[str, str]] | None"]:
    """`match`, once it is decided."""
    while True:
        found = match(pattern, cursor.text, at, cursor.ended)
        if not isinstance(found, More):
            return found
        yield


def read_name(cursor: Cursor) -> Generator[None, None, str]:
    """The name of a function, and moves behind it. Raises NotACall where there is none."""
    while True:
        found = NAME.match(cursor.text, cursor.at, cursor.at + MAX_NAME)
        end = found.end() if found else cursor.at
        if end < len(cursor.text) or cursor.ended:
            break
        yield
    if found is None:
        raise NotACall
    cursor.at = end
    return found.group()


def read_value(cursor: Cursor) -> Generator[None, None, str]:
    """The JSON text of the next value of any kind, and moves behind it. Raises Broken if it is none."""
    c = yield from past_spaces(cursor)
    start = cursor.at
    if c and c in "{[":
        scanner = JsonScanner()
        while c:
            try:
                done = scanner.step(c)
            except JsonError as error:
                raise Broken(f"it is no JSON: {error}") from None
            cursor.at += 1
            if done:
                return cursor.text[start : cursor.at]
            c = yield from more(cursor, cursor.at)
        raise Broken("the text ends inside of it", cut=True)
    if c == '"':
        cursor.at += 1
        while (c := (yield from more(cursor, cursor.at))) and c != '"':
            cursor.at += 1
            if c < " ":
                raise Broken(f"it is no JSON: the control character {c!r} in a string")
            if c == "\\":
                yield from more(cursor, cursor.at)
                cursor.at += 1
        if not c:
            raise Broken("the text ends inside of it", cut=True)
        cursor.at += 1
        return cursor.text[start : cursor.at]
    while (c := (yield from more(cursor, cursor.at))) and c not in ",]} \t\r\n":
        cursor.at += 1
    text = cursor.text[start : cursor.at]
    try:
        read_json(text)
    except ValueError:
        reason = "the text ends inside of it" if not c else f"it is no JSON: {text[:40]!r} where a value should be"
        raise Broken(reason, cut=not c) from None
    return text


def read_string(cursor: Cursor, what: str) -> Generator[None, None, str]:
    text = yield from read_value(cursor)
    if text[:1] != '"':
        raise Broken(f"{what} is no text")
    return _decoded(text)


def read_arguments(cursor: Cursor, sink: CallSink) -> Reading:
    """Arguments: a JSON object, whose text goes to the sink as it comes; or a string that holds one."""
    c = yield from past_spaces(cursor)
    if c == '"':
        inner = yield from read_string(cursor, "the arguments")
        try:
            value = read_json(inner)
        except ValueError as error:
            raise Broken(f"its arguments are a string that is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise Broken("its arguments are no object")
        sink.arguments(inner)
        return
    if c != "{":
        text = yield from read_value(cursor)
        if text != "null":
            raise Broken("its arguments are no object")
        sink.arguments("{}")
        return
    scanner = JsonScanner()
    sent = cursor.at
    while True:
        text, end = cursor.text, len(cursor.text)
        try:
            while cursor.at < end:
                done = scanner.step(text[cursor.at])
                cursor.at += 1
                if done:
                    sink.arguments(text[sent : cursor.at])
                    return
        except JsonError as error:
            sink.arguments(text[sent : cursor.at])
            raise Broken(f"it is no JSON: {error}") from None
        sink.arguments(text[sent:end])
        sent, text = end, ""  # the cursor holds the text alone, see `Cursor.add`
        if cursor.ended:
            raise Broken("the text ends inside of it", cut=True)
        yield


class _Object:
    """State of a call in a JSON object that is being read."""

    __slots__ = ("arguments", "id", "name", "wrapped")

    def __init__(self) -> None:
        self.name = self.id = ""
        self.arguments: str | None = None  # read before the name
        self.wrapped = False


def read_object(cursor: Cursor, shape: JsonCall, sink: CallSink, bare: bool) -> Reading:
    """A call that is a JSON object; the cursor is at its brace.

    bare: no mark precedes it, so that an object without a name, or whose first key is another one's, is text.
    """
    state = _Object()
    if (yield from past_spaces(cursor)) != "{":
        raise NotACall
    try:
        yield from _read_members(cursor, shape, sink, state, bare)
    except Broken:
        if bare and not state.name:
            raise NotACall from None
        raise
    if not state.name:
        if bare:
            raise NotACall
        raise Broken("it has no name of a function")
    if not sink.opened:
        if bare and state.arguments is None:
            raise NotACall
        sink.open(state.name, state.id)
        sink.arguments(state.arguments or "{}")
    elif not sink.begun:
        sink.arguments("{}")


def _read_members(cursor: Cursor, shape: JsonCall, sink: CallSink, state: _Object, bare: bool) -> Reading:
    cursor.at += 1
    first = True
    while True:
        c = yield from past_spaces(cursor)
        if c == "}" and first:
            cursor.at += 1
            return
        if c != '"':
            raise Broken(
                f"it is no JSON: {c!r} where a key should be" if c else "the text ends inside of it", cut=not c
            )
        key = yield from read_string(cursor, "a key")
        if first and bare and not shape.name_is_key and not _may_begin(key, shape):
            raise NotACall
        if state.name and not sink.opened and state.arguments is None and _is_arguments(key, shape):
            sink.open(state.name, state.id)
        c = yield from past_spaces(cursor)
        if c != ":":
            raise Broken(
                f"it is no JSON: {c!r} where a colon should be" if c else "the text ends inside of it", cut=not c
            )
        cursor.at += 1
        yield from _read_member(cursor, shape, sink, state, key, bare)
        first = False
        c = yield from past_spaces(cursor)
        cursor.at += 1
        if c == "}":
            return
        if c != ",":
            reason = f"it is no JSON: {c!r} where a comma or }} should be" if c else "the text ends inside of it"
            raise Broken(reason, cut=not c)


def _is_arguments(key: str, shape: JsonCall) -> bool:
    return key == shape.key("arguments") or key in ARGUMENT_KEYS


def _id_follows(shape: JsonCall) -> bool:
    """Whether the template writes an id between the name and the arguments."""
    kinds = [kind for _, kind, _ in shape.keys]
    return any(kind in ("id", "number") for kind in kinds[kinds.index("name") : kinds.index("arguments")])


def _may_begin(key: str, shape: JsonCall) -> bool:
    return key in _FIRST_KEYS or key in ARGUMENT_KEYS or key == shape.wrapper or any(key == k for k, _, _ in shape.keys)


def _read_member(cursor: Cursor, shape: JsonCall, sink: CallSink, state: _Object, key: str, bare: bool) -> Reading:
    own_name, own_arguments, own_id = shape.key("name"), shape.key("arguments"), shape.key("id") or shape.key("number")
    if shape.name_is_key and not state.name:
        state.name = key
        sink.open(key, "")
        yield from read_arguments(cursor, sink)
    elif key == own_name or (key == "name" and not own_name):
        if state.name:
            raise Broken("it is no JSON: an object has the same key twice")
        state.name = yield from read_string(cursor, "the name")
        if not state.name:
            raise Broken("it has no name of a function")
        if state.arguments is not None:
            sink.open(state.name, state.id)
            sink.arguments(state.arguments)
        elif not bare and (state.id or not _id_follows(shape)):
            sink.open(state.name, state.id)
    elif _is_arguments(key, shape):
        if sink.begun or state.arguments is not None:
            raise Broken("it has both arguments and parameters" if key != own_arguments else "its arguments come twice")
        if state.name:
            if not sink.opened:
                sink.open(state.name, state.id)
            yield from read_arguments(cursor, sink)
        else:
            state.arguments = yield from _arguments_text(cursor)
    elif key in (own_id, "id"):
        text = yield from read_value(cursor)
        state.id = _decoded(text) if text[:1] == '"' else text if text[:1].isdigit() else ""
    elif key in (shape.wrapper, "function") and (yield from past_spaces(cursor)) == "{" and not state.wrapped:
        state.wrapped = True
        yield from _read_members(cursor, shape, sink, state, bare)
    else:
        yield from read_value(cursor)


def _decoded(text: str) -> str:
    """The text of a JSON string. Raises Broken for a wrong one."""
    try:
        return str(read_json(text))
    except ValueError as error:
        raise Broken(f"it is no JSON: {error}") from None


def _arguments_text(cursor: Cursor) -> Generator[None, None, str]:
    text = yield from read_value(cursor)
    if text[:1] == '"':
        text = _decoded(text)
    return "{}" if text == "null" else text
