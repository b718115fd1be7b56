"""Ends of values between marks: their own mark, or what shows that it is missing."""

import re
from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import Any

from oxillama.chat.json_reader import matched
from oxillama.chat.json_scan import JsonError, JsonScanner
from oxillama.chat.openings import parts_of
from oxillama.chat.patterns import Cursor, first_mark, skip_spaces
from oxillama.chat.shapes import CallFormat, Tagged
from oxillama.chat.value_marks import argument_names, longest_key, value_marks

__all__ = ["ToolEnds", "ValueEnds", "end_of_closed", "find_any", "held", "past_any", "scan_json", "spaces_from"]

_TAG = re.compile(r"<[^<>]*>")
Stop = tuple[int, int]  # where a value ends, and where the text behind it goes on


def past_any(cursor: Cursor, marks: tuple[str, ...], at: int) -> Generator[None, None, int]:
    """The place behind one of these marks; -1 where none stands."""
    for mark in marks:
        found = yield from matched(cursor, (mark,), at)
        if found is not None:
            return found[0]
    return -1


def find_any(cursor: Cursor, marks: list[str], at: int) -> Generator[None, None, int | None]:
    """The place behind the first of these marks from a place on; None if the text ends without one."""
    pattern = re.compile("|".join(map(re.escape, marks)) or "(?!)")
    longest = max(map(len, marks), default=1)
    while (found := pattern.search(cursor.text, at)) is None:
        if cursor.ended:
            return None
        at = max(at, len(cursor.text) - longest + 1)
        yield
    return found.end()


def spaces_from(cursor: Cursor, at: int) -> Generator[None, None, int]:
    """The place of the next character that is no space, or the end of the text."""
    at = skip_spaces(cursor.text, at)
    while at == len(cursor.text) and not cursor.ended:
        yield
        at = skip_spaces(cursor.text, at)
    return at


def held(text: str, start: int, heads: tuple[str, ...]) -> int:
    """Start of the part of a text behind `start` that may be the beginning of a mark."""
    longest, beginnings = _beginnings(heads)
    for place in range(max(start, len(text) - longest), len(text)):
        if text[place:] in beginnings:
            return place
    return len(text)


@lru_cache(maxsize=256)
def _beginnings(heads: tuple[str, ...]) -> tuple[int, frozenset[str]]:
    """(length of the longest, all) of the beginnings of these texts."""
    found = frozenset(head[:n] for head in heads for n in range(1, len(head)))
    return max(map(len, found), default=0), found


def scan_json(cursor: Cursor, start: int) -> Generator[None, None, tuple[str, int]]:
    """("whole", where it ends) of a JSON object or list behind spaces at a place; "wrong" or "cut", and where that is
    known, of what is none."""
    at = yield from spaces_from(cursor, start)
    if cursor.text[at : at + 1] not in ("{", "["):
        return "wrong", at
    scanner = JsonScanner()
    try:
        while True:
            while at < len(cursor.text):
                at += 1
                if scanner.step(cursor.text[at - 1]):
                    return "whole", at
            if cursor.ended:
                return "cut", at
            yield
    except JsonError:
        return "wrong", at - 1


def end_of_closed(cursor: Cursor, start: int, mark: str) -> Generator[None, None, tuple[bool, int, int]]:
    """Reads JSON objects from a place on, or a list: whether a closing mark stands behind them, where they end, and
    where that is known. JSON that the end of the text cuts off has no such mark.
    """
    at = behind = start
    while True:
        state, end = yield from scan_json(cursor, at)
        if state != "whole":
            return False, behind, end
        behind = end
        at = yield from spaces_from(cursor, end)
        found = yield from matched(cursor, (mark,), at)
        if found is not None:
            return True, behind, at
        if cursor.text[at : at + 1] != "{":
            cut = cursor.ended and at < len(cursor.text) and mark.startswith(cursor.text[at:])
            return cut, behind, at


class ToolEnds:
    """Ends of the values in calls of several tools, found when they are first asked for.

    closers: marks that may be left over behind a call. schemas: of the tools' arguments.
    """

    __slots__ = ("_calls", "_known", "_longest", "_names", "closers", "schemas")

    def __init__(self, calls: CallFormat, closers: tuple[str, ...], schemas: Mapping[str, Any]) -> None:
        self._calls, self.closers, self.schemas = calls, closers, schemas
        self._known: dict[tuple[str, str], ValueEnds] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._longest: dict[str, int] = {}

    def of(self, name: str, call_end: str) -> "ValueEnds":
        """The ends of one tool's values. call_end: the marks that must end the call."""
        key = (name if name in self.schemas else "", call_end)
        if key not in self._known:
            self._known[key] = ValueEnds(self._calls, call_end, self.closers, self.schemas.get(name))
        return self._known[key]

    def names(self, name: str) -> frozenset[str]:
        """The names of one tool's arguments."""
        if name not in self.schemas:
            return frozenset()
        if name not in self._names:
            self._names[name] = frozenset(argument_names(self.schemas[name]))
        return self._names[name]

    def longest(self, name: str) -> int:
        """The length of the longest key in one tool's schema."""
        if name not in self._longest:
            self._longest[name] = longest_key(self.schemas.get(name))
        return self._longest[name]


class ValueEnds:
    """Ends of the values in a tool's calls.

    Their own mark ends them where the call goes on or ends behind it, since texts may hold the mark; or the mark of
    another argument of the tool; or the end of the call, behind which the text ends or another call begins. Of marks
    that come several times all count as one.
    """

    def __init__(self, calls: CallFormat, call_end: str, closers: tuple[str, ...], schema: Any) -> None:
        """call_end: the marks that must end the call. closers: marks that may be left over behind it."""
        shape = calls.shape
        assert isinstance(shape, Tagged)
        self._marks = marks = value_marks(calls)
        self._names = frozenset(argument_names(schema))
        self._longest_key = max(map(len, self._names), default=0) + len(marks.key_end)
        self._key_end, self._begin = shape.key_end, shape.begin.strip()
        self._parts, self._n_needed = parts_of(calls.call_end), max(len(parts_of(call_end)), 1)
        self._value_end = value_end = shape.value_end.strip()
        between = _shared_tags(self._begin, calls.call_end)
        self._closings = tuple(dict.fromkeys((value_end, f"{between}{value_end}")))
        self._opened = tuple(mark for mark in marks.opened if not self._begin.startswith(mark))
        self._closers = tuple(mark for mark in closers if mark != value_end)
        first = self._parts[0] if self._parts else ""
        known = [mark for mark in (marks.begin if self._names else "", first) if mark]
        line = "" if marks.tight else r"(?<![^\n])"
        unclosed = "|".join(map(re.escape, known)) or "(?!)"
        self._at_start = re.compile(f"(?P<other>{unclosed})")
        self._anywhere = re.compile(f"(?P<own>{re.escape(first_mark((value_end,)))})|{line}(?P<other>{unclosed})")
        before = ("", "\n") if marks.tight else ("\n",)
        own = first_mark((value_end,))
        self.heads = tuple(dict.fromkeys((own, shape.lead + own, *(b + mark for b in before for mark in known))))
        self.start_heads = (*self.heads, *known)
        self._lead = shape.lead

    def search(self, text: str, start: int, at: int) -> "re.Match[str] | None":
        """The first mark from a place on that may end the value that begins at `start`."""
        found = self._at_start.match(text, start) if at <= start else None
        return found or self._anywhere.search(text, max(at, start))

    def search_again(self, text: str, start: int, at: int) -> int:
        """Place from which to search when there is more text."""
        return max(at, start, len(text) - max(map(len, self.start_heads)) + 1)

    def held(self, text: str, start: int) -> int:
        """Up to which place a text belongs to the value that begins at `start`, whatever comes."""
        place = held(text, start, self.heads)
        rest = text[start:]
        return start if any(head.startswith(rest) for head in self.start_heads) else place

    def decide(self, cursor: Cursor, found: "re.Match[str]", start: int) -> Generator[None, None, Stop | int]:
        """End of the value, if this mark ends it; else the place from which to search on."""
        at = found.start()
        if found.lastgroup == "own":
            end = yield from past_any(cursor, (self._value_end,), at)
            if end < 0:
                return at + 1
            what, behind = yield from self.follows(cursor, end)
            stop = at - len(self._lead) if cursor.text.endswith(self._lead, start, at) else at
            return (stop, behind) if what else max(behind, end)
        stop = at - 1 if at > start and cursor.text[at - 1] == "\n" else at
        if cursor.text.startswith(self._marks.begin, at) and self._names:
            opens = yield from self._opens_argument(cursor, at)
            return (stop, at) if opens else at + 1
        behind = yield from self._past_closers(cursor, at)
        return (stop, at) if behind < 0 else behind

    def _opens_argument(self, cursor: Cursor, at: int) -> Generator[None, None, bool]:
        """Whether the mark at a place opens an argument that the tool has."""
        at += len(self._marks.begin)
        word = self._marks.key_end
        while (end := cursor.text.find(word, at, at + self._longest_key)) < 0:
            if cursor.ended or len(cursor.text) >= at + self._longest_key:
                return False
            yield
        if cursor.text[at:end] not in self._names:
            return False
        return (yield from matched(cursor, self._key_end, end)) is not None

    def _past_closers(self, cursor: Cursor, start: int) -> Generator[None, None, int]:
        """-1 where the text ends behind the marks of a call's end, or another call begins; else the place behind."""
        at = start
        while True:
            lined = self._marks.tight or at == start or cursor.text[at - 1] == "\n"
            if lined and (yield from self._next_call(cursor, at)):
                return -1
            end = yield from past_any(cursor, self._closers, at)
            if end < 0:
                return max(at, start + 1)
            at = yield from spaces_from(cursor, end)
            if at == len(cursor.text):
                return -1

    def _next_call(self, cursor: Cursor, at: int) -> Generator[None, None, bool]:
        """Whether the end of the call and what opens another one stand at a place."""
        longest = max(map(len, self._marks.next_call), default=0)
        while True:
            rest = cursor.text[at : at + longest]
            if any(rest.startswith(text) for text in self._marks.next_call):
                return True
            if cursor.ended or not any(text.startswith(rest) for text in self._marks.next_call):
                return False
            yield

    def is_cut(self, rest: str) -> bool:
        """Whether a text is the beginning of what may follow an argument."""
        return any(mark.startswith(rest) for mark in (self._begin, *self._parts, *self._closings))

    def follows(self, cursor: Cursor, at: int) -> Generator[None, None, tuple[str, int]]:
        """Kind of what stands behind an argument, and its place: "argument", "end" of the call or of the text, or ""
        for anything else. Marks of the end of arguments before it don't count."""
        while True:
            at = yield from spaces_from(cursor, at)
            if at == len(cursor.text):
                return "end", at
            if (yield from matched(cursor, (self._begin,), at)) is not None:
                return "argument", at
            if (yield from self._is_call_end(cursor, at)) or (yield from past_any(cursor, self._opened, at)) >= 0:
                return "end", at
            end = yield from past_any(cursor, self._closings, at)
            if end < 0:
                return "", at
            at = end

    def _is_call_end(self, cursor: Cursor, at: int) -> Generator[None, None, bool]:
        """Whether the call ends at a place, or the text within the marks of its end."""
        for n, part in enumerate(self._parts):
            end = yield from past_any(cursor, (part,), at)
            if end < 0:
                return n >= self._n_needed or (n > 0 and at == len(cursor.text))
            while end >= 0:
                at = yield from spaces_from(cursor, end)
                end = yield from past_any(cursor, (part,), at)
            if n + 1 >= self._n_needed:
                return True
        return False


def _shared_tags(a: str, b: str) -> str:
    """The whole marks that two texts begin with alike."""
    at = 0
    while (tag := _TAG.match(a, at)) and b.startswith(tag.group(), at):
        at = tag.end()
    return a[:at]
