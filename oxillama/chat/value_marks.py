"""Marks that end a value between marks though its own end is missing; a parser and a grammar know the same ones.

They stand at the beginning of a line or of the value, or anywhere where a template writes calls in one line.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from oxillama.chat.layout import needed_end
from oxillama.chat.openings import inner_openings, parts_of
from oxillama.chat.patterns import Pattern, first_mark
from oxillama.chat.shapes import CallFormat, NestedTags, Tagged
from oxillama.chat.values import schema_properties

__all__ = ["CDATA", "ValueMarks", "argument_names", "as_pattern", "cdata_ends", "value_marks"]

CDATA = "<![CDATA["  # opens a section of XML, whose text may hold any mark but its own end

MAX_PATTERN = 2000  # characters of marks that a pattern can exclude
_TAG = re.compile(r"<[^<>]*>?")
_SYNTAX = re.compile(r"[\\^$.*+?()\[\]{}|/]")


@dataclass(frozen=True, slots=True)
class ValueMarks:
    """Marks that end a value that isn't closed.

    tight: a mark ends it anywhere, not only where a line begins. begin, key_end: what stands around the key of another
    argument. call_end, opened: the first mark of the call's end, and those that open another call. next_call: all marks
    of the end, and one that opens another call.
    """

    tight: bool
    begin: str
    key_end: str
    call_end: str
    opened: tuple[str, ...]
    next_call: tuple[str, ...]

    @property
    def first(self) -> tuple[str, ...]:
        """Beginnings of the marks that end a value."""
        return (self.begin, self.call_end) if self.call_end else (self.begin,)

    def absent(self, names: list[str], ends: list[str], begin: str = "") -> tuple[str, ...]:
        """Patterns that look ahead for none of the marks that end a value, nor for this beginning: one for the marks,
        and one for what they begin with, which takes fewer states. ends: marks of its own."""
        line = "(?:[^]*\\n)?" if not self.tight else "[^]*"
        head = f"(?!{as_pattern(begin)})" if begin else ""
        found = []
        for lined, own in (([*self.openings(names), *self.next_call], ends), (self.first, ends[:1])):
            if 0 < sum(map(len, (*lined, *own))) <= MAX_PATTERN:
                closed = f"(?![^]*(?:{'|'.join(map(as_pattern, own))}))" if own else ""
                found.append(f"{head}{closed}(?!{line}(?:{'|'.join(map(as_pattern, lined))}))")
        return tuple(found)

    def openings(self, names: list[str]) -> list[str]:
        """The marks that open arguments of these names."""
        return [f"{self.begin}{name}{self.key_end}" for name in names]


def as_pattern(text: str) -> str:
    """A pattern of a text."""
    return _SYNTAX.sub(lambda found: "\\" + found.group(), text).replace("\n", "\\n")


def argument_names(schema: Any) -> list[str]:
    """The names of a tool's arguments."""
    return [name for name, _, _ in schema_properties(schema, schema)]


def longest_key(schema: Any) -> int:
    """The length of the longest key anywhere in a schema, the names of inner arguments among them."""
    longest, inner, seen = 0, [schema], set[int]()
    while inner:
        one = inner.pop()
        if id(one) in seen:
            continue
        if isinstance(one, Mapping | list | tuple):
            seen.add(id(one))
        if isinstance(one, Mapping):
            longest = max(longest, *(len(key) for key in one if isinstance(key, str)), 0)
            inner += one.values()
        elif isinstance(one, list | tuple):
            inner += one
    return longest


def cdata_ends(calls: CallFormat) -> tuple[tuple[str, str], ...]:
    """(end of a section, what follows it) of all ways in which a section ends: the mark of the value's end first."""
    assert isinstance(calls.shape, Tagged)
    marks = value_marks(calls)
    behind = (calls.shape.value_end.strip(), *marks.first)
    return tuple((f"]]>{space}", mark) for mark in behind for space in ("", "\n"))


@lru_cache(maxsize=64)
def value_marks(calls: CallFormat) -> ValueMarks:
    """The marks of a format whose arguments stand between marks."""
    shape = calls.shape
    opened = _opened(calls)
    if isinstance(shape, NestedTags):
        return ValueMarks(True, f"{shape.mark}<", ">", calls.call_end.strip(), opened, _next_call(calls, opened))
    assert isinstance(shape, Tagged)
    last = shape.head_end[-1] if shape.head_end else ""
    lined = isinstance(last, str) and last.endswith("\n")
    first = next(iter(parts_of(calls.call_end)), "")
    return ValueMarks(
        not lined, shape.begin.strip(), first_mark(shape.key_end), first, opened, _next_call(calls, opened)
    )


def _opened(calls: CallFormat) -> tuple[str, ...]:
    """The first marks of what opens a call, but for those that its arguments end with as well."""
    before = calls.shape.mark if isinstance(calls.shape, NestedTags) else ""
    own = getattr(calls.shape, "value_end", "").strip()
    tags = dict.fromkeys(_first_tag(text, before) for text in _openings(calls))
    return tuple(tag for tag in tags if tag and not own.startswith(tag))


def _next_call(calls: CallFormat, opened: tuple[str, ...]) -> tuple[str, ...]:
    """Ends of a call with the first mark of another one, as templates write them, and without breaks in between."""
    ends = parts_of(calls.call_end)
    if not ends:
        return ()
    spelled = dict.fromkeys((calls.call_end, "".join(ends)))
    gaps = dict.fromkeys((calls.separator if not calls.separator.strip() else "", "", "\n"))
    found = [end + gap + mark for end in spelled for gap in gaps for mark in opened]
    if last := needed_end(calls):
        found += [f"{end}{a}{last}{b}{mark}" for end in spelled for a in gaps for b in gaps for mark in opened]
    return tuple(dict.fromkeys(found))


def _openings(calls: CallFormat) -> list[str]:
    """Marks that open another call."""
    inner = [opening.before for opening in inner_openings(calls)]
    patterns: list[Pattern] = [calls.opening, calls.call_begin, (calls.separator,), *inner]
    return [pattern[0].lstrip() for pattern in patterns if pattern and isinstance(pattern[0], str)]


def _first_tag(text: str, mark: str) -> str:
    """The first mark of a text, if the text begins with it. mark: what stands before every mark."""
    tag = _TAG.match(text, len(mark)) if text.startswith(mark) else None
    return text[: tag.end()] if tag else ""
