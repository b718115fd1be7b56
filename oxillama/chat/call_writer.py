"""Writer of calls: the text with which a model that keeps a format calls tools."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from oxillama._util.json_values import dumped
from oxillama.chat.calls import read_json
from oxillama.chat.layout import Layout
from oxillama.chat.patterns import Hole, Pattern
from oxillama.chat.shapes import Braces, CallFormat, JsonCall, Named, NestedTags, PythonCall, Tagged
from oxillama.errors import ToolFormatError

__all__ = ["WrittenCall", "write_calls"]


class WrittenCall(NamedTuple):
    """A call to be written. arguments: an object, or the JSON text of one; other text is written as it is."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str = ""


def write_calls(layout: Layout, calls: Sequence[WrittenCall], behind_text: bool = False) -> str:
    """The text of calls in a row, without marks that only end the turn. behind_text: content precedes them."""
    form = layout.calls
    if form is None:
        raise ToolFormatError(f"calls can't be written: {layout.reason}")
    begin = form.later if behind_text and form.later is not None else form.begin
    written = [_one(form, call, number) for number, call in enumerate(calls)]
    text = _filled(begin, calls[0], 0) + form.separator.join(written)
    end = _end(layout) if form.begin else ""
    return text + (end if end[:1] in ("]", "") or not _breaks(begin) else f"\n{end}")


def _end(layout: Layout) -> str:
    """The end of all calls: up to the counterpart of the mark that opens them, if it is known."""
    needed = layout.end_words[: layout.n_needed_ends]
    return "".join(needed if any(word.startswith("<") for word in needed) else layout.end_words)


def _one(form: CallFormat, call: WrittenCall, number: int) -> str:
    """A call with the marks around it, which stand in lines of their own if the first one does."""
    body = _Writer(form, call, number).body()
    breaks = form.call_end and (_breaks(form.call_begin) or _opens_a_line(form.shape)) and not body.endswith("\n")
    return _filled(form.call_begin, call, number) + body + ("\n" if breaks else "") + form.call_end


def _breaks(pattern: Pattern) -> bool:
    return bool(pattern) and isinstance(pattern[-1], str) and pattern[-1].endswith("\n")


def _opens_a_line(shape: object) -> bool:
    return _breaks(getattr(shape, "head_end", ())) or (isinstance(shape, Named) and _breaks(shape.middle))


def _filled(pattern: Pattern, call: WrittenCall, number: int, type: str = "") -> str:
    """A pattern with texts in its holes."""
    texts = {"name": call.name, "number": str(number), "id": call.id or f"call0000{number % 10}", "type": type}
    return "".join(texts[part.kind] if isinstance(part, Hole) else part for part in pattern)


class _Writer:
    """One call, from its name or its brace on."""

    __slots__ = ("_call", "_number", "_shape")

    def __init__(self, form: CallFormat, call: WrittenCall, number: int) -> None:
        self._shape, self._call, self._number = form.shape, call, number

    def body(self) -> str:
        shape, name = self._shape, self._call.name
        if isinstance(shape, JsonCall):
            return self._json(shape)
        if isinstance(shape, Named):
            return name + _filled(shape.middle, self._call, self._number) + self._text()
        values = self._values()
        if values is None:
            return name + self._text()
        if isinstance(shape, PythonCall):
            return f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"
        if isinstance(shape, Braces):
            return name + _braces(values, shape.quote)
        if isinstance(shape, NestedTags):
            return name + shape.head_end + _nested(values, shape)
        return name + _filled(shape.head_end, self._call, self._number) + self._tagged(shape, values)

    def _text(self) -> str:
        """The arguments as JSON text."""
        given = self._call.arguments
        return given if isinstance(given, str) else _dumped(given)

    def _values(self) -> Mapping[str, Any] | None:
        """The arguments as an object; None if their text is that of none."""
        given = self._call.arguments
        try:
            found = read_json(given) if isinstance(given, str) else given
        except ValueError:
            return None
        return found if isinstance(found, Mapping) else None

    def _json(self, shape: JsonCall) -> str:
        if shape.name_is_key:
            return f"{{{_dumped(self._call.name)}: {self._text()}}}"
        own = {"name": _dumped(self._call.name), "arguments": self._text(), "id": _dumped(self._call.id or "call00000")}
        members = []
        for key, kind, text in shape.keys:
            number = f'"{self._number}"' if text.startswith('"') else str(self._number)
            members.append(f"{_dumped(key)}: {own.get(kind, number if kind == 'number' else text)}")
        inner = f"{{{', '.join(members)}}}"
        return f'{{"type": "function", {_dumped(shape.wrapper)}: {inner}}}' if shape.wrapper else inner

    def _tagged(self, shape: Tagged, values: Mapping[str, Any]) -> str:
        written = []
        for key, value in values.items():
            is_text = isinstance(value, str)
            mark = _filled(shape.key_end, self._call, self._number, shape.text_type if is_text else shape.json_type)
            head = shape.begin + key + (mark if mark.endswith(shape.trail) else mark + shape.trail)
            written.append(head + (value if is_text else _dumped(value)) + shape.lead + shape.value_end)
        return ("\n" if _opens_a_line(shape) else "").join(written)


def _dumped(value: Any) -> str:
    return dumped(value, ensure_ascii=False)


def _braces(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_braces(inner, quote)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_braces(inner, quote) for inner in value) + "]"
    return _dumped(value)


def _nested(value: Any, shape: NestedTags) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = [(shape.item, inner) for inner in value]
    else:
        return _dumped(value)
    return "".join(f"{shape.mark}<{key}>{_nested(inner, shape)}{shape.mark}</{key}>" for key, inner in pairs)
