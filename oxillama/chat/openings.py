"""Inner openings of calls: what is left where the outer mark is missing, a tool's name, and what follows it."""

import itertools
import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.chat.patterns import MORE, NAME, Hole, More, Pattern, match
from oxillama.chat.shapes import Braces, CallFormat, JsonCall, Named, NestedTags, PythonCall, Tagged
from oxillama.chat.values import schema_properties

__all__ = ["SPACES", "Heads", "InnerOpening", "inner_openings", "needs_arguments", "parts_of"]

SPACES = " \t\n\r\f\v"
MAX_NAME = 256
_TAG = re.compile(r"<[^<>]*>?|\[/?[A-Z][A-Z_]*\]")
_WORD = re.compile(r"[^\W\d_]+")
_PART = re.compile(r"\s+|(?<=>)(?=</)")
_BREAK = re.compile(r"\s*\n\s*")
# Words in which a mark and its counterpart differ, or that say nothing.
_GENERIC = {"begin", "start", "open", "prefix", "end", "stop", "close", "suffix", "name"}
_HOLE = "\ue000"


@dataclass(frozen=True, slots=True)
class InnerOpening:
    """Opening of a call whose outer mark is missing.

    lead: what stands before a JSON object, or the same as before. before: what stands before the name. after: what must
    stand behind it, any of these. after_empty: the same in a call without arguments. at_line: it opens a call at the
    beginning of a line alone. call_end: the marks that must end such a call, which the other marks of the format's may
    follow. closed: the mark that must stand behind a JSON object, or a list of them, since nothing else tells a call
    from an example; "" for other shapes.
    """

    lead: Pattern
    before: Pattern
    after: tuple[Pattern, ...]
    at_line: bool
    call_end: str = ""
    after_empty: tuple[Pattern, ...] = ()
    closed: str = ""

    def patterns(self, name: str, *, empty: bool) -> Iterator[Pattern]:
        """Patterns that open a call of a tool. empty: the tool may be called without arguments."""
        for behind in (*self.after, *(self.after_empty if empty else ())):
            yield _merged((*self.before, name, *behind))
            if isinstance(behind[0], str) and behind[0][:1].isspace():  # since spaces need not be
                for space in ("", "\n"):
                    yield _merged((*self.before, name, space + behind[0].lstrip(), *behind[1:]))

    def spellings(self, name: str, *, empty: bool) -> Iterator[str]:
        """Texts of `patterns` up to a hole, as templates write them and without line breaks; JSON spaced or not."""
        for pattern in self.patterns(name, empty=empty):
            for parts in _numbered(pattern):
                text = _flat(parts).split(_HOLE)[0]
                n = len(_flat(self.lead)) if self.before != self.lead else len(text)
                lead, head = text[:n], text[n:]
                spaced = head.strip().replace("{ ", "{").replace(" :", ":").replace(" ,", ",")
                for json_text in dict.fromkeys((spaced, "".join(head.split()))):
                    yield from dict.fromkeys((lead + json_text, _BREAK.sub("", lead) + json_text))


def needs_arguments(schema: Any) -> bool:
    """Whether a tool can't be called without arguments."""
    return any(needed for _, _, needed in schema_properties(schema, schema))


# ---- what a format's marks leave


def inner_openings(calls: CallFormat) -> tuple[InnerOpening, ...]:
    """The inner openings of a format, those with more marks first."""
    found = [_opening(calls, dropped, kept) for dropped, kept in _suffixes(calls)]
    return tuple(dict.fromkeys(made for made in found if made is not None))


def _suffixes(calls: CallFormat) -> Iterator[tuple[str, Pattern]]:
    """(what is missing, the rest) for each place in an opening where a mark begins, or text behind one."""
    flat = _flat(calls.opening)
    lead = len(flat) - len(flat.lstrip())
    places = {len(_flat(calls.begin))}
    for tag in () if isinstance(calls.shape, NestedTags) else _TAG.finditer(flat):  # whose marks are made of brackets
        places |= {tag.start(), len(flat) - len(flat[tag.end() :].lstrip())}
    for place in sorted(places):
        if place > lead:
            yield flat[:place], _cut(calls.opening, place)


def _flat(pattern: Pattern) -> str:
    return "".join(part if isinstance(part, str) else _HOLE for part in pattern)


def _cut(pattern: Pattern, at: int) -> Pattern:
    """A pattern from a place of its flat text on."""
    found: list[str | Hole] = []
    for part in pattern:
        n = 1 if isinstance(part, Hole) else len(part)
        if at < n:
            found.append(part[max(at, 0) :] if isinstance(part, str) else part)
        at -= n
    return tuple(found)


def _opening(calls: CallFormat, dropped: str, kept: Pattern) -> InnerOpening | None:
    """The opening that is left where some marks are missing; None if it can't be told from text."""
    flat = _flat(kept)
    tagged = bool(_TAG.search(flat))
    if flat.startswith(_HOLE) or any(isinstance(part, Hole) and part.kind == "name" for part in kept):
        return None
    shape = calls.shape
    before, closed = kept, ""
    after: tuple[Pattern, ...] = ()
    empty: tuple[Pattern, ...] = ()
    if isinstance(shape, Tagged):
        after, empty = _behind_name(shape, calls.call_end, tagged)
    elif isinstance(shape, NestedTags) and tagged:
        after = ((shape.head_end.rstrip(),),)
    elif isinstance(shape, Named):
        after = _middle(shape.middle, tagged)
    elif isinstance(shape, Braces) and flat:
        after = (("{",),)
    elif isinstance(shape, PythonCall) and flat:
        after = (("(",),)
    elif isinstance(shape, JsonCall):
        closed = "" if tagged else _closing(calls)
        head = _json_head(shape)
        if head is not None and (tagged or (closed and ("[" in flat or not dropped.rstrip().endswith("[")))):
            before, after = _merged((*kept, *((" ",) if kept else ()), *head[0])), (head[1],)
    if not after:
        return None
    at_line = not _TAG.match(flat) or dropped.rstrip(" ").endswith("\n")
    end = calls.call_end if isinstance(shape, JsonCall) else _needed_end(calls.call_end, flat, dropped)
    return InnerOpening(kept, before, after, at_line, end, empty, closed)


def _numbered(pattern: Pattern) -> Iterator[Pattern]:
    """A pattern with every digit in the place of a number."""
    digits = [tuple("0123456789") if isinstance(part, Hole) and part.kind == "number" else (part,) for part in pattern]
    yield from map(_merged, itertools.product(*digits))


def _merged(parts: tuple[str | Hole, ...]) -> Pattern:
    found: list[str | Hole] = []
    for part in parts:
        if found and isinstance(part, str) and isinstance(found[-1], str):
            found[-1] += part
        elif part:
            found.append(part)
    return tuple(found)


def _behind_name(shape: Tagged, call_end: str, tagged: bool) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
    """Marks behind the name of a call with arguments between marks, and of one without arguments."""
    head = shape.head_end[0] if shape.head_end and isinstance(shape.head_end[0], str) else ""
    if head.strip() and (tagged or _TAG.search(head)):
        return ((head.rstrip(),),), ()
    begin = shape.begin.strip()
    if head.strip() or not _TAG.match(begin):
        return (), ()
    return ((f"{head or ' '}{begin}",),), tuple((f"{head or ' '}{end}",) for end in parts_of(call_end)[:1])


def _middle(middle: Pattern, tagged: bool) -> tuple[Pattern, ...]:
    """Pattern between a name and its arguments: up to its first mark, or its first text behind a mark."""
    found: list[str | Hole] = []
    for part in middle:
        text = part if isinstance(part, str) else ""
        tag = _TAG.search(text)
        found.append(text[: tag.end()] if tag else part)
        if tag or (tagged and text.strip()):
            return ((*found[:-1], str(found[-1]).rstrip()),)
    return ()


def _closing(calls: CallFormat) -> str:
    """The mark behind a JSON object, or behind the bracket of a list of them; "" if there is none."""
    text = calls.call_end if calls.call_end.strip() else calls.end
    tag = _TAG.search(text)
    return text[: tag.end()].strip().removeprefix("]").strip() if tag else ""


def _json_head(shape: JsonCall) -> tuple[Pattern, Pattern] | None:
    """Patterns in a JSON object before the name, and behind it up to the arguments; None for another order."""
    if shape.name_is_key:
        return ('{ "',), ('" : {',)
    kinds = [kind for _, kind, _ in shape.keys]
    if shape.wrapper or kinds.index("name") > kinds.index("arguments") or any(" " in key for key, _, _ in shape.keys):
        return None
    pieces: list[str | Hole] = ["{ "]
    for i, (key, kind, text) in enumerate(shape.keys[: kinds.index("arguments") + 1]):
        pieces.append(f"{' , ' if i else ''}{json.dumps(key, ensure_ascii=False)} : ")
        quote = '"' if kind in ("id", "name") or text.startswith('"') else ""
        if kind == "constant":
            pieces.append(text)
        elif kind != "arguments":
            pieces += [quote, Hole("name" if kind == "name" else "id" if kind == "id" else "number"), quote]
    place = pieces.index(Hole("name"))
    return _merged(tuple(pieces[:place])), _merged((*pieces[place + 1 : -1], str(pieces[-1]).rstrip()))


def parts_of(call_end: str) -> list[str]:
    """The marks that end a call, each with the text before it."""
    return [part for part in _PART.split(call_end) if part]


def _needed_end(call_end: str, kept: str, dropped: str) -> str:
    """The marks of a call's end up to the last counterpart of a mark that its opening still has."""
    own, missing = _words(kept), _words(dropped)
    parts = parts_of(call_end)
    while parts:
        words = _words(parts[-1])
        if words & own and len(words & own) >= len(words & missing):
            break
        parts.pop()
    return " ".join(parts)


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)} - _GENERIC


# ---- where a text has one


class Heads:
    """The inner openings that a text may have, with the names of tools."""

    def __init__(self, openings: tuple[InnerOpening, ...], schemas: Mapping[str, Any]) -> None:
        self._openings = openings if schemas else ()
        self._names = sorted(schemas)
        self._empty = {name for name, schema in schemas.items() if not needs_arguments(schema)}
        self._known = frozenset(schemas)
        first = {_flat(opening.before).lstrip()[:1] for opening in self._openings}
        marks = "".join(sorted(first - {""}))
        names = "".join(sorted({name[0] for name in self._names})) if "" in first else ""
        found = [f"[{re.escape(marks)}]"] if marks else []
        found += [rf"(?<=\n)[{re.escape(names)}]"] if names else []
        self.characters = "|".join(found)  # the pattern of a character that one begins with

    def __bool__(self) -> bool:
        return bool(self._openings)

    def find(
        self, text: str, at: int, ended: bool, begins: bool, behind_call: bool
    ) -> "tuple[InnerOpening, int] | More | None":
        """The opening that stands at a place, and where a call is read from: its name, or the brace of an object.

        MORE where the text ends too early. ended: no more text comes. begins: a line, or the text, begins there.
        behind_call: a call ends before, which makes no JSON a call.
        """
        undecided = False
        for opening in self._openings:
            if opening.at_line and not begins and not (behind_call and not opening.closed):
                continue
            found = self._match(opening, text, at, ended)
            if isinstance(found, int):
                return opening, found
            undecided = undecided or isinstance(found, More)
        return MORE if undecided else None

    def _match(self, opening: InnerOpening, text: str, at: int, ended: bool) -> "int | More | None":
        found = match(opening.before, text, at, ended)
        if not isinstance(found, tuple):
            return found
        start = found[0]
        named = NAME.match(text, start, start + MAX_NAME)
        end = named.end() if named else start
        if end == len(text) and not ended:
            i = bisect_left(self._names, text[start:end])
            return MORE if i < len(self._names) and self._names[i].startswith(text[start:end]) else None
        if named is None or named.group() not in self._known:
            return None
        undecided = False
        for behind in (*opening.after, *(opening.after_empty if named.group() in self._empty else ())):
            found = match(behind, text, end, ended)
            if isinstance(found, tuple):
                return start if opening.before == opening.lead else text.index("{", at)
            undecided = undecided or isinstance(found, More)
        return MORE if undecided else None
