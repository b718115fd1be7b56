"""Bounds on the results of string operations that can make much out of little, computed before they run.

Every check takes the budget and the operation's arguments and returns the arguments to go on with (an iterable that
had to be read is replaced by the list of its items), or raises LimitError.
"""

import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from oxillama.chat.budget import Budget, LimitError

__all__ = ["FILTER_CHECKS", "METHOD_CHECKS", "REFUSED_METHODS", "check_format"]

_Call = tuple[tuple[Any, ...], dict[str, Any]]

# Methods of str, bytes and int without use in a template and with results that are hard to bound.
REFUSED_METHODS = frozenset({"expandtabs", "from_bytes", "maketrans", "to_bytes", "translate"})

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
        spent.allow(spent.size(items) * max(len(items), 1), "the filter 'sum'")
    return (items, attribute, start), {}


FILTER_CHECKS: Mapping[str, Callable[..., _Call]] = {
    "batch": _batch,
    "center": _width,
    "format": _format,
    "indent": _indent,
    "join": _join_filter,
    "replace": _replace,
    "slice": _slice,
    "sum": _sum,
}

METHOD_CHECKS: Mapping[str, Callable[..., _Call]] = {
    "center": _width,
    "join": _join_method,
    "ljust": _width,
    "replace": _replace,
    "rjust": _width,
    "zfill": _width,
}
