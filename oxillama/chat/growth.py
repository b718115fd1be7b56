"""Bounds on operations that can make much out of little, or work long on little, computed before they run.

Every check takes the budget and the operation's arguments and returns the arguments to go on with (an iterable that
had to be read is replaced by the list of its items), or raises LimitError. What reads each of its arguments once needs
none: it is charged for their lengths.
"""

import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from oxillama.chat.budget import Budget, LimitError

__all__ = [
    "FILTER_CHECKS",
    "FREE_FILTERS",
    "FREE_TESTS",
    "METHOD_CHECKS",
    "REFUSED_METHODS",
    "check_format",
    "check_method",
]

_Call = tuple[tuple[Any, ...], dict[str, Any]]

# Methods of str, bytes and int without use in a template and with results that are hard to bound.
REFUSED_METHODS = frozenset({"expandtabs", "from_bytes", "maketrans", "to_bytes", "translate"})

# Filters and tests that don't go through their value, or charge for it as they do.
FREE_FILTERS = frozenset({
    "attr", "count", "d", "default", "first", "last", "length", "list", "map", "random", "reverse", "safe", "string",
    "tojson",
})  # fmt: skip
FREE_TESTS = frozenset({
    "boolean", "callable", "defined", "escaped", "false", "filter", "float", "integer", "iterable", "mapping", "none",
    "number", "sameas", "sequence", "string", "test", "true", "undefined",
})  # fmt: skip
# Of the encodings of Python, those that take linear time.
_ENCODINGS = frozenset({"ascii", "latin-1", "latin1", "utf-8", "utf8", "utf-16", "utf-32"})
_MAX_DIGITS = 10_000  # of a number in a text
_CHARACTER, _PIECE = 80, 64  # bytes of a string of one character, and of a short one

# Flags, width and precision of a % field.
_WIDTHS = re.compile(r"[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?")
_MAX_FIELDS = 10_000


def _percent_widths(text: str) -> list[str]:
    """Widths and precisions of the fields of ``text % ...``: digits, ``*`` or nothing."""
    found: list[str] = []
    at = text.find("%")
    while at >= 0:
        at += 1
        if text.startswith("(", at):  # the key of a mapping, which may hold parentheses
            depth = 0
            while at < len(text):
                depth += (text[at] == "(") - (text[at] == ")")
                at += 1
                if depth == 0:
                    break
        match = _WIDTHS.match(text, at)
        if match:
            found += [width for width in match.groups() if width]
            at = match.end()
        at = text.find("%", at + 1)
    return found


def _format_widths(text: str) -> list[str]:
    """:func:`_percent_widths` for ``text.format(...)``; a field in a field's format counts as ``*``."""
    specs = [spec for _, _, spec, _ in string.Formatter().parse(text) if spec]
    return ["*" if "{" in spec else number for spec in specs for number in re.findall(r"\d+|\{", spec)]


def check_format(spent: Budget, template: str | bytes, arguments: Any, *, percent: bool = True) -> None:
    """Bound ``template % arguments`` and (not ``percent``) ``template.format(...)``.

    The result is no longer than the template, the widths in it, and every field filled with all the arguments. Widths
    that are arguments themselves (``%*d``, ``{:{}}``) are refused.
    """
    text = template.decode("latin-1") if isinstance(template, bytes) else template
    fields = text.count("%" if percent else "{")
    if fields > _MAX_FIELDS:
        raise LimitError(f"a format has {fields} fields; the limit is {_MAX_FIELDS}")
    widths = _percent_widths(text) if percent else _format_widths(text)
    if "*" in widths:
        raise LimitError("a format takes its width from an argument")
    # Ten digits are enough to exceed any limit, and keep int() fast.
    total = sum(int(width[:10]) for width in widths)
    spent.allow(len(text) + total + fields * (spent.size(arguments) + 999), "a format")


def _width(spent: Budget, value: Any, width: Any = 80, fill: Any = None) -> _Call:
    if isinstance(width, int):
        spent.allow(width, "padding")
    return (value, width) if fill is None else (value, width, fill), {}


def _replace(spent: Budget, value: Any, old: Any, new: Any, count: Any = None) -> _Call:
    text = value if isinstance(value, (str, bytes)) else spent.text(value)
    if isinstance(old, type(text)) and isinstance(new, type(text)):
        spent.allow(len(text) + text.count(old) * len(new), "replace")  # type: ignore[arg-type]
    return (value, old, new) if count in (-1, None) else (value, old, new, count), {}


def _join_method(spent: Budget, value: Any, items: Any) -> _Call:
    items = list(items)
    spent.allow(spent.size(items) + len(items) * len(value), "join")
    return (value, items), {}


def _join_filter(spent: Budget, value: Any, d: Any = "", attribute: Any = None) -> _Call:
    items = list(value)
    spent.allow(spent.size(items) + len(items) * len(spent.text(d)), "the filter 'join'")
    return (items, d, attribute), {}


def _indent(spent: Budget, s: Any, width: Any = 4, first: Any = False, blank: Any = False) -> _Call:
    text = spent.text(s)
    each = width if isinstance(width, int) else len(spent.text(width))
    spent.allow(len(text) + (text.count("\n") + 2) * each, "the filter 'indent'")
    return (text, width, first, blank), {}


def _format(spent: Budget, value: Any, *args: Any, **kwargs: Any) -> _Call:
    check_format(spent, spent.text(value), (args, kwargs))
    return (value, *args), kwargs


def _batch(spent: Budget, value: Any, linecount: Any, fill_with: Any = None) -> _Call:
    if isinstance(linecount, int):
        spent.allow(linecount * spent.size(fill_with), "the filter 'batch'")
    return (value, linecount, fill_with), {}


def _slice(spent: Budget, value: Any, slices: Any, fill_with: Any = None) -> _Call:
    if isinstance(slices, int):
        spent.allow(slices * spent.size(fill_with), "the filter 'slice'")
    return (value, slices, fill_with), {}


def _sum(spent: Budget, iterable: Any, attribute: Any = None, start: Any = 0) -> _Call:
    items = list(iterable)
    # Adding up sequences copies the growing sum once for each item.
    if attribute is not None or not all(isinstance(item, (int, float)) for item in (start, *items)):
        total = spent.size(items) * max(len(items), 1)
        spent.allow(total, "the filter 'sum'")
        spent.step(total >> 8)
    return (items, attribute, start), {}


def _unchanged(check: Callable[..., None]) -> Callable[..., _Call]:
    """A check that leaves the arguments as they are."""

    def checked(spent: Budget, *args: Any, **kwargs: Any) -> _Call:
        check(spent, *args, **kwargs)
        return args, kwargs

    return checked


def _round(spent: Budget, value: Any = None, precision: Any = 0, *_: Any, **__: Any) -> None:
    """Powers of ten, as large as the precision says, are computed for it."""
    if isinstance(precision, int):
        spent.allow_bits(4 * abs(precision))


def _sort(spent: Budget, value: Any = None, *_: Any, **__: Any) -> None:
    """Sorting compares each item several times."""
    spent.step(4 * spent.cost(value))


def _trim(spent: Budget, value: Any = None, chars: Any = None) -> None:
    """Every character that is cut off is looked for among those given."""
    if isinstance(value, (str, bytes)) and isinstance(chars, (str, bytes)):
        spent.step(len(value) * len(chars) >> 12)


def _characters(spent: Budget, value: Any = None) -> None:
    if isinstance(value, str):
        spent.claim(len(value) * (8 if value.isascii() else 8 + _CHARACTER), "the filter 'list'")


def _words(spent: Budget, value: Any = None, *_: Any, **__: Any) -> None:
    """Filters that cut a text into words by a pattern."""
    length = len(value) if isinstance(value, str) else spent.size(value)
    spent.step(length >> 2)
    spent.claim(length * _PIECE // 2, "words")


def _tags(spent: Budget, value: Any = None) -> None:
    """Some versions of the library copy the text for each tag."""
    text = spent.text(value)
    spent.step(len(text) * text.count("<") >> 14)
    _words(spent, text)


def _escape(spent: Budget, value: Any = None) -> None:
    if isinstance(value, str) and 6 * len(value) > spent.limit:
        spent.allow(len(value) + 5 * sum(map(value.count, "&<>\"'")), "the filter 'escape'")


def _urlencode(spent: Budget, value: Any = None) -> None:
    length = spent.size(value)
    spent.step(length >> 3)
    spent.claim(12 * length, "the filter 'urlencode'")


def _number(spent: Budget, value: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(value, (str, bytes)) and len(value) > _MAX_DIGITS:
        raise LimitError(f"a number would be read from {len(value)} characters; the limit is {_MAX_DIGITS}")


def check_method(spent: Budget, owner: Any, name: str, first: Any = None, *_: Any) -> None:
    """Bounds the work of a method of a string, and the memory of what it makes. first: its first argument."""
    if not isinstance(owner, (str, bytes)):
        return
    if name in ("rfind", "rindex", "rpartition", "rsplit") and isinstance(first, (str, bytes)):
        spent.step(len(owner) * len(first) >> 12)  # in the worst case, which searches from the beginning don't have
    elif name in ("lstrip", "rstrip", "strip"):
        _trim(spent, owner, first)
    if name in ("rsplit", "split", "splitlines"):
        separated = isinstance(first, (str, bytes)) and isinstance(first, type(owner)) and len(first)
        pieces = owner.count(first) + 1 if separated else len(owner) // 2 + 1
        spent.claim(pieces * _PIECE, f"{name}()")
    elif name in ("decode", "encode"):
        if first is not None and str(first).lower().replace("_", "-") not in _ENCODINGS:
            raise LimitError(f"{name}() takes one of {', '.join(sorted(_ENCODINGS))}")
        spent.claim(4 * len(owner), f"{name}()")


FILTER_CHECKS: Mapping[str, Callable[..., _Call]] = {
    "batch": _batch,
    "center": _width,
    "dictsort": _unchanged(_sort),
    "e": _unchanged(_escape),
    "escape": _unchanged(_escape),
    "float": _unchanged(_number),
    "forceescape": _unchanged(_escape),
    "format": _format,
    "groupby": _unchanged(_sort),
    "indent": _indent,
    "int": _unchanged(_number),
    "join": _join_filter,
    "list": _unchanged(_characters),
    "max": _unchanged(_sort),
    "min": _unchanged(_sort),
    "replace": _replace,
    "round": _unchanged(_round),
    "slice": _slice,
    "sort": _unchanged(_sort),
    "striptags": _unchanged(_tags),
    "sum": _sum,
    "title": _unchanged(_words),
    "trim": _unchanged(_trim),
    "unique": _unchanged(_sort),
    "urlencode": _unchanged(_urlencode),
    "wordcount": _unchanged(_words),
}

METHOD_CHECKS: Mapping[str, Callable[..., _Call]] = {
    "center": _width,
    "join": _join_method,
    "ljust": _width,
    "replace": _replace,
    "rjust": _width,
    "zfill": _width,
}
