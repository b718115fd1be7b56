"""Recognition of how a model writes answers, from what its chat template makes of probe conversations.

A shape of calls is told by where the probes' names, keys and values stand; the marks around them are what the
renderings have in common and what they don't, cut where marks begin and end.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from oxillama.chat.patterns import Hole, Pattern
from oxillama.chat.probe import ARGUMENTS, CONTENT, FIRST, IDS, KEYS, REASON, SECOND, VALUES, Probes
from oxillama.chat.shapes import (
    Braces,
    CallFormat,
    Frame,
    JsonCall,
    Named,
    NestedTags,
    PythonCall,
    ReasoningFormat,
    Shape,
    Tagged,
)

__all__ = ["common_prefix", "common_suffix", "recognise"]

_ID, _NAME, _NUMBER, _TYPE = "\ue000", "\ue001", "\ue002", "\ue003"  # holes in texts that are compared
_KINDS: dict[str, Any] = {_ID: "id", _NAME: "name", _NUMBER: "number", _TYPE: "type"}
_MARK = re.compile(r"\s*(?:<[^<>]*>|\[/?[A-Z][A-Z_ ]*\])\s*")
_OPEN_TAG = re.compile(r"(<([^<>/|\s][^<>|\s]*)>)\s*(?:</\2>)?\s*$")
_DECODER = json.JSONDecoder()


# ---- texts


def common_prefix(a: str, b: str) -> str:
    """Text that two texts begin with alike, without a mark that is cut."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    text = a[:n]
    if n < len(a) or n < len(b):
        at = max(text.rfind("<"), text.rfind("["))
        if (
            at >= 0
            and not (text.rfind(">") > at or text.rfind("]") > at)
            and text[at:].strip("[")
            and _in_mark(a, b, at)
        ):
            text = text[:at]
    return text


def _in_mark(a: str, b: str, at: int) -> bool:
    return any(_MARK.match(text, at) for text in (a, b))


def common_suffix(a: str, b: str) -> str:
    """Text that two texts end with alike, without a mark that is cut."""
    n = len(common_prefix_plain(a[::-1], b[::-1]))
    text = a[len(a) - n :]
    if n in (len(a), len(b)):
        return text
    close, opening = text.find(">"), text.find("<")
    before = a[: len(a) - n]
    if close >= 0 and (opening < 0 or close < opening) and before.rfind("<") > before.rfind(">"):
        text = text[close + 1 :]
    return text


def _from_mark(text: str) -> str:
    """A text without the rest of a mark that it begins with."""
    cut = re.match(r"[^<]*?>\s*(?=\S)", text)
    return text[cut.end() :] if cut else text


def common_prefix_plain(a: str, b: str) -> str:
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


def _pattern(text: str) -> Pattern:
    """A pattern from a text with holes."""
    parts = [part for part in re.split(f"([{''.join(_KINDS)}])", text) if part]
    shown = {_ID: "call00001", _NAME: "", _NUMBER: "0", _TYPE: "string"}
    return tuple(Hole(_KINDS[part], shown[part]) if part in _KINDS else part for part in parts)


def _holed(text: str, name: str) -> str:
    for id in IDS:
        text = text.replace(id, _ID)
    return text.replace(name, _NAME)


# ---- where the answer begins


def _start(text: str, probes: Probes) -> int:
    """Start of the answer in an assistant's turn: behind what a prompt ends with, or what stands before content."""
    best = max((len(p) for p in probes.prompts if text.startswith(p)), default=-1)
    if probes.content is not None:
        head = probes.content[: probes.content.index(CONTENT)]
        if text.startswith(head):
            best = max(best, len(head))
        elif best < 0:
            best = len(common_prefix(text, probes.content))
    if best < 0:
        best = max((len(common_prefix(text, p)) for p in probes.prompts), default=0)
    return best


# ---- calls


@dataclass(frozen=True, slots=True)
class _Unit:
    """A call in a text: where it begins and ends, without what stands around it."""

    start: int
    end: int


def _object_unit(text: str, name: str) -> tuple[_Unit, dict[str, Any]] | None:
    """The JSON object that is a call."""
    at = text.find(name)
    for found in re.finditer(r"\{", text[: max(at, 0)]):
        try:
            value, end = _DECODER.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and end > at:
            return _Unit(found.start(), end), value
    return None


def _arguments_at(text: str, after: int) -> _Unit | None:
    """The JSON object of a call's arguments."""
    for found in re.finditer(r"\{", text[after:]):
        try:
            value, end = _DECODER.raw_decode(text, after + found.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and KEYS[0] in value:
            return _Unit(after + found.start(), end)
    return None


def _json_shape(text: str, value: dict[str, Any]) -> JsonCall | None:
    inner, wrapper = value, ""
    if not any(item == FIRST for item in inner.values()) and FIRST not in inner:
        wrapper = next((k for k, v in value.items() if isinstance(v, dict) and FIRST in (*v.values(), *v)), "")
        inner = value[wrapper] if wrapper else value
    if FIRST in inner:
        return JsonCall((("", "arguments", ""),), name_is_key=True, spaced="\n" in text)
    keys: list[tuple[str, Any, str]] = []
    for key, item in inner.items():
        if item == FIRST:
            keys.append((key, "name", ""))
        elif item == ARGUMENTS or item == json.dumps(ARGUMENTS):
            keys.append((key, "arguments", ""))
        elif item == IDS[0]:
            keys.append((key, "id", ""))
        elif str(item).isdigit():
            keys.append((key, "number", json.dumps(item)))
        else:
            keys.append((key, "constant", json.dumps(item, ensure_ascii=False)))
    kinds = [kind for _, kind, _ in keys]
    if "name" not in kinds or "arguments" not in kinds:
        return None
    return JsonCall(tuple(keys), wrapper=wrapper, spaced="\n" in text)


def _recognise_calls(probes: Probes) -> tuple[CallFormat, str] | None:
    """The format of calls, and what follows the last one in the turn."""
    if probes.call is None:
        return None
    text = probes.call[_start(probes.call, probes) :]
    two = None if probes.calls is None else probes.calls[_start(probes.calls, probes) :]
    for make in (_as_object, _as_named, _as_braces, _as_python, _as_nested, _as_tagged):
        found = make(text, two, probes)
        if found is not None:
            shape, first, pair = found
            return _around(text, two, shape, first, pair, probes)
    return None


Made = tuple[Shape, _Unit, tuple[_Unit, _Unit] | None] | None


def _as_object(text: str, two: str | None, probes: Probes) -> Made:
    found = _object_unit(text, FIRST)
    shape = found and _json_shape(text[found[0].start : found[0].end], found[1])
    if not found or not shape:
        return None
    pair = None
    if two is not None:
        first = _object_unit(two, FIRST)
        if first is not None:
            second = _object_unit(two[first[0].end :], SECOND)
            if second is not None:
                n = first[0].end
                pair = first[0], _Unit(n + second[0].start, n + second[0].end)
    return shape, found[0], pair


def _as_named(text: str, two: str | None, probes: Probes) -> Made:
    found = _named_unit(text, FIRST, 0)
    if found is None:
        return None
    unit, middle = found
    pair = None
    if two is not None:
        first = _named_unit(two, FIRST, 0)
        second = first and _named_unit(two, SECOND, first[0].end)
        if first and second:
            pair = first[0], second[0]
            middle = _differing(_holed(first[1], FIRST), _holed(second[1], SECOND))
    return Named(_pattern(_holed(middle, FIRST))), unit, pair


def _named_unit(text: str, name: str, after: int) -> tuple[_Unit, str] | None:
    arguments = _arguments_at(text, after)
    if arguments is None:
        return None
    at = text.rfind(name, after, arguments.start)
    if at < 0:
        return None
    return _Unit(at, arguments.end), text[at + len(name) : arguments.start]


def _differing(a: str, b: str) -> str:
    """A text whose numbers that differ from another's are holes."""
    numbers = re.compile(r"\d+")
    if numbers.sub("", a) != numbers.sub("", b) or a == b:
        return a
    others = numbers.findall(b)
    pairs = iter(others)
    return numbers.sub(lambda found: _NUMBER if next(pairs) != found.group() else found.group(), a)


def _as_braces(text: str, two: str | None, probes: Probes) -> Made:
    found = re.search(rf"{FIRST}\s*\{{\s*{KEYS[0]}:(\S*?){VALUES[0]}(\S*?),", text)
    if not found or not found.group(1) or found.group(1) != found.group(2):
        return None
    ends = [text.index("}", text.index(VALUES[1])) + 1]
    pair = None
    if two is not None and SECOND in two:
        end = two.index("}", two.index(VALUES[1])) + 1
        last = two.index("}", two.index(VALUES[2])) + 1
        pair = _Unit(two.index(FIRST), end), _Unit(two.index(SECOND, end), last)
    return Braces(found.group(1)), _Unit(found.start(), ends[0]), pair


def _as_python(text: str, two: str | None, probes: Probes) -> Made:
    found = re.search(rf"{FIRST}\(\s*{KEYS[0]}\s*=\s*(['\"]){VALUES[0]}", text)
    if not found:
        return None
    pair = None
    if two is not None:
        end = two.index(")", two.index(VALUES[1])) + 1
        pair = _Unit(two.index(FIRST), end), _Unit(two.index(SECOND), two.index(")", two.index(VALUES[2])) + 1)
    return PythonCall(found.group(1)), _Unit(found.start(), text.index(")", text.index(VALUES[1])) + 1), pair


@dataclass(frozen=True, slots=True)
class _Places:
    """Texts between name, keys and values of a call with tags."""

    start: int
    head: str  # between name and first key
    key_end: str
    between: str  # between first value and second key
    end: int  # behind the last value


def _places(text: str, name: str, after: int, values: tuple[str, ...]) -> _Places | None:
    first_key = text.find(KEYS[0], after)
    start = text.rfind(name, after, first_key)
    value = text.find(values[0], first_key)
    if first_key < 0 or start < 0 or value < 0:
        return None
    end = value + len(values[0])
    between = ""
    if len(values) > 1:
        second_key = text.find(KEYS[1], end)
        if second_key < 0:
            return None
        between = text[end:second_key]
        end = text.find(values[1], second_key) + len(values[1])
    key_end = text[first_key + len(KEYS[0]) : value]
    return _Places(start, text[start + len(name) : first_key], key_end, between, end)


def _as_nested(text: str, two: str | None, probes: Probes) -> Made:
    places = _places(text, FIRST, 0, VALUES[:2])
    if places is None or f"</{KEYS[0]}>" not in places.between or not places.key_end.startswith(">"):
        return None
    mark = places.between[: places.between.index(f"</{KEYS[0]}>")]
    head_end = places.head.removesuffix(f"{mark}<")
    nested = probes.nested or ""
    found = re.search(r"<(\w+)>[^<]*<qqinner>|<(\w+)>\W*<qqinner>", nested)
    item = next((group for group in (found.groups() if found else ()) if group), "item")

    def unit(whole: str, name: str, after: int, values: tuple[str, ...]) -> _Unit | None:
        own = _places(whole, name, after, values)
        if own is None:
            return None
        close = f"{mark}</{KEYS[len(values) - 1]}>"
        return _Unit(own.start, whole.index(close, own.end) + len(close))

    first = unit(text, FIRST, 0, VALUES[:2])
    pair = None
    if two is not None:
        a = unit(two, FIRST, 0, VALUES[:2])
        b = a and unit(two, SECOND, a.end, VALUES[2:])
        pair = (a, b) if a and b else None
    return None if first is None else (NestedTags(head_end, mark, item), first, pair)


def _as_tagged(text: str, two: str | None, probes: Probes) -> Made:
    places = _places(text, FIRST, 0, VALUES[:2])
    if places is None or not places.between.strip():
        return None
    begin = _from_mark(common_suffix(places.head, places.between)).lstrip()
    if not begin.strip():
        return None
    head_end = places.head[: len(places.head) - len(begin)]
    value_end = places.between[: len(places.between) - len(begin)]
    if not value_end.strip():
        return None
    key_end, text_type, json_type = _typed(places.key_end, probes)
    trail = re.search(r"\n*$", key_end)
    lead = re.match(r"\n*", value_end)
    mark = value_end.strip()

    def unit(own: _Places | None, whole: str) -> _Unit | None:
        if own is None:
            return None
        end = whole.find(mark, own.end)
        return None if end < 0 else _Unit(own.start, end + len(mark))

    first = unit(places, text)
    pair = None
    if two is not None:
        a_places = _places(two, FIRST, 0, VALUES[:2])
        a = unit(a_places, two)
        b_places = a and _places(two, SECOND, a.end, VALUES[2:])
        b = unit(b_places, two) if b_places else None
        if a and b and a_places and b_places:
            pair = a, b
            head_end = _differing(head_end, b_places.head[: len(b_places.head) - len(begin)])
    shape = Tagged(
        _pattern(head_end),
        begin,
        _pattern(key_end),
        trail.group() if trail else "",
        lead.group() if lead else "",
        mark,
        text_type,
        json_type,
    )
    return None if first is None else (shape, first, pair)


def _typed(key_end: str, probes: Probes) -> tuple[str, str, str]:
    """The text between key and value, with a hole for the type if there is one; what that is for text and numbers."""
    number = probes.number
    at = -1 if number is None else number.find(KEYS[0])
    value = -1 if number is None else number.find("17.25", at)
    if number is None or at < 0 or value < 0:
        return key_end, "", ""
    other = number[at + len(KEYS[0]) : value]
    if other == key_end:
        return key_end, "", ""
    words, others = re.findall(r"\w+|\W+", key_end), re.findall(r"\w+|\W+", other)
    differ = [i for i, (a, b) in enumerate(zip(words, others, strict=False)) if a != b]
    if len(words) != len(others) or len(differ) != 1:
        return key_end, "", ""
    shown = words[differ[0]]
    words[differ[0]] = _TYPE
    return "".join(words), shown, others[differ[0]]


def _around(
    text: str, two: str | None, shape: Shape, first: _Unit, pair: tuple[_Unit, _Unit] | None, probes: Probes
) -> tuple[CallFormat, str]:
    """The marks around one call and around all."""
    opening = _holed(text[: first.start], FIRST)
    tail = text[first.end :]
    content_tail = probes.content.split(CONTENT, 1)[1] if probes.content else ""
    turn_end = common_suffix(tail, content_tail)
    if turn_end.strip():
        tail = tail[: len(tail) - len(turn_end)]
    begin, call_begin, call_end, separator, end = opening, "", "", "", tail
    if pair is not None and two is not None:
        between = two[pair[0].end : pair[1].start]
        between = _holed(between, SECOND)
        call_begin = common_suffix(opening, between)
        call_begin = call_begin if call_begin == opening else call_begin.lstrip()
        if not isinstance(shape, JsonCall) and not call_begin.strip() and not between.strip():
            call_begin = ""
        begin = opening[: len(opening) - len(call_begin)]
        rest = between[: len(between) - len(call_begin)]
        call_end = common_prefix(rest, tail)
        separator, end = rest[len(call_end) :], tail[len(call_end) :]
    found = CallFormat(
        shape,
        _pattern(begin),
        _pattern(call_begin),
        call_end.strip(),
        separator,
        end.strip(),
        parallel=pair is not None,
    )
    later = _later(probes, opening, found)
    return (found if later is None else replace(found, later=later)), turn_end


def _later(probes: Probes, opening: str, calls: CallFormat) -> Pattern | None:
    """Opening of calls after content, if it isn't what opens them elsewhere."""
    if isinstance(calls.shape, JsonCall):
        return None
    plain = opening.strip()
    text = probes.content_call
    if text is not None and 0 <= text.find(CONTENT) < text.find(FIRST):
        after = _holed(text[text.index(CONTENT) + len(CONTENT) :], FIRST)
        at = after.find(plain) if plain else after.find(_NAME)
        before = after[: max(at, 0)].strip()
        return _pattern(before) if before and not plain else None
    if not plain or (opening[:1].isspace() and _NAME in opening):
        return _pattern(calls.separator) if calls.separator.strip() else None
    return None


# ---- the frame


def recognise(probes: Probes) -> tuple[Frame, CallFormat | None]:
    """Marks around the parts of an answer, and the format of calls, None if the template shows none."""
    found = _recognise_calls(probes)
    calls, turn_end = found if found is not None else (None, "")
    content_tail = probes.content.split(CONTENT, 1)[1] if probes.content else ""
    if found is None:
        turn_end, content_end = content_tail, ""
    else:
        content_end = content_tail[: len(content_tail) - len(turn_end)] if turn_end else content_tail
    reasoning, breaks, content_begin = _recognise_reasoning(probes, calls)
    if not content_begin and probes.content is not None:
        head = probes.content[: probes.content.index(CONTENT)]
        content_begin = head[_start_of_head(head, probes) :]
        if reasoning is not None:
            for mark in (reasoning.begin, reasoning.end):
                content_begin = content_begin.replace(mark.strip(), "")
        if any(p.strip().endswith(content_begin.strip()) for p in probes.prompts):
            content_begin = ""
    frame = Frame(reasoning, content_begin.strip(), content_end.strip(), turn_end.strip(), breaks)
    return frame, calls


def _start_of_head(head: str, probes: Probes) -> int:
    best = max((len(p) for p in probes.prompts if head.startswith(p)), default=-1)
    if best >= 0:
        return best
    return max((len(common_prefix(head, p)) for p in probes.prompts), default=len(head))


def _recognise_reasoning(
    probes: Probes, calls: CallFormat | None
) -> tuple[ReasoningFormat | None, tuple[str, ...], str]:
    """(marks of reasoning, breaks between parts, what opens content after reasoning)."""
    text = probes.reasoned or probes.reasoned_call
    if text is None:
        return _from_prompts(probes), (), ""
    head, after = text.split(REASON, 1)
    end = _end_of_reasoning(probes, after, calls)
    if not end.strip():
        return _from_prompts(probes), (), ""
    content_begin = ""
    if probes.reasoned is not None and after.startswith(end):
        content_begin = after[len(end) : after.index(CONTENT)]
    begin = _mirrored(end, head)
    if begin is None:
        base = max((len(p) for p in probes.prompts if head.startswith(p)), default=-1)
        longer = [p for p in probes.prompts if p.startswith(head) and len(p) > len(head)]
        begin = head[base:] if base >= 0 else longer[0][len(head) :] if longer else ""
    marks = list(_MARK.finditer(end))
    breaks = (end.strip(),) if len(marks) > 1 and not end.strip().startswith("</") else ()
    return ReasoningFormat(begin, end), breaks, content_begin


def _end_of_reasoning(probes: Probes, after: str, calls: CallFormat | None) -> str:
    """End of reasoning: what stands behind it whether content or calls follow."""
    if probes.reasoned is None:
        found = _MARK.match(after)
        return found.group() if found else ""
    whole = after[: after.index(CONTENT)]
    if probes.reasoned_call is not None and calls is not None:
        other = probes.reasoned_call.split(REASON, 1)[1]
        at = other.find(FIRST)
        opening = calls.opening
        first = opening[0].strip() if opening and isinstance(opening[0], str) else ""
        place = other.find(first) if first else -1
        if 0 <= place <= at and not other[:place].strip().startswith(first):
            text = other[:place]
            if whole.startswith(text.rstrip()) and text.strip():
                return text if whole.startswith(text) else text.rstrip()
        shared = common_prefix(whole, other)
        if shared.strip():
            return shared
    return whole


def _mirrored(end: str, head: str) -> str | None:
    """The mark in `head` that a closing mark is the counterpart of, and what follows it there."""
    ends = [found.end() for found in re.finditer(r"<[^<>]*>", end)]
    for n in (len(end), *reversed(ends)):
        found = _mirrored_mark(end[:n].strip(), head)
        if found is not None:
            return found
    return None


def _mirrored_mark(text: str, head: str) -> str | None:
    for a, b in (("</", "<"), ("[/", "["), ("END", "START"), ("end", "begin"), ("close", "open"), ("suffix", "prefix")):
        if a in text:
            at = head.rfind(text.replace(a, b, 1))
            if at >= 0 and "<" not in head[at + len(text.replace(a, b, 1)) :]:
                return head[at:]
    found = re.match(r"<(\w+)\|>", text)
    if found:
        at = head.rfind(f"<|{found.group(1)}>")
        if at >= 0:
            return head[at:]
    return None


def _from_prompts(probes: Probes) -> ReasoningFormat | None:
    """Marks of reasoning that prompts open, or open and close at once."""
    heads = [*probes.prompts]
    if probes.content is not None:
        heads.append(probes.content[: probes.content.index(CONTENT)])
    for text in _by_length(heads):
        found = _OPEN_TAG.search(text)
        if found:
            name = found.group(2)
            closed = f"</{name}>"
            if any(closed in other for other in heads) or "think" in name:
                return ReasoningFormat(found.group(1), closed)
    return None


def _by_length(texts: list[str]) -> Iterator[str]:
    return iter(sorted(texts, key=len, reverse=True))
