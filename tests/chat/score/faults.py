"""Answers with the faults that models make in the marks of calls.

unopened: calls without their outer mark, each at a line's beginning; of JSON, those that fit. unclosed: arguments
between marks without the mark of their end. doubled: marks that end arguments and calls, twice.
"""

import re
from collections.abc import Callable
from typing import Any

from oxillama.chat.arguments import faults
from oxillama.chat.patterns import Hole, Pattern
from oxillama.chat.shapes import NestedTags, Tagged
from oxillama.chat.value_marks import value_marks
from tests.chat.score.answers import Recorded
from tests.chat.score.outputs import format_of

__all__ = ["doubled", "unclosed", "unopened"]

_HOLE = "\ue000"


def _changed(recorded: Recorded, change: Callable[[str], str], *, fit: bool = False) -> Recorded:
    """The answers with calls of known tools, and no marks within them, changed. fit: those that fit their schemas."""
    answers = []
    for case in recorded.data["outputs"]:
        known = _are_known(case.get("meant", {}).get("calls", []), recorded.tools(case["settings"]) or [], fit)
        plain = known and not case["case"].startswith("marker")
        answers.append({**case, "text": change(case["text"])} if plain else case)
    return Recorded({**recorded.data, "outputs": answers}, recorded.source, recorded.conversations)


def _are_known(calls: list[Any], tools: list[dict[str, Any]], fit: bool) -> bool:
    """Whether the tools have all the calls' names and arguments, which fit, if they are to."""
    named = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    return bool(calls) and all(
        name in named
        and set(arguments) <= set(named[name].get("properties", {}))
        and not (fit and list(faults(named[name], arguments)))
        for name, arguments in calls
    )


def _expression(pattern: Pattern) -> str:
    """A regular expression of a pattern, with any spaces."""
    text = "".join(part if isinstance(part, str) else _HOLE for part in pattern)
    words = [re.escape(word).replace(_HOLE, r"[\w.:-]+") for word in text.split()]
    return r"\s*".join(words)


def unopened(recorded: Recorded) -> Recorded:
    """Calls without their outer mark."""
    form = format_of(recorded)
    calls, inner = form.calls, form.layout.inner
    if calls is None or not inner:
        return recorded
    wanted = "".join(part if isinstance(part, str) else _HOLE for part in calls.call_begin).strip()
    flat = {o: "".join(part if isinstance(part, str) else _HOLE for part in o.lead) for o in inner}
    opening = next((o for o in inner if calls.begin and flat[o].strip() == wanted), inner[0])
    lead = _expression(opening.lead)
    whole = "".join(part if isinstance(part, str) else _HOLE for part in calls.opening)
    outer = whole[: len(whole) - len(flat[opening])] if flat[opening] else whole
    mark = re.compile(r"\s*" + _expression(_pattern(outer)) + r"\s*" + f"(?={lead})")

    def change(text: str) -> str:
        def without(found: re.Match[str]) -> str:
            begins = not opening.at_line or not text[: found.start()].strip()
            return "" if begins else "\n"

        return mark.sub(without, text)

    return _changed(recorded, change, fit=bool(opening.closed))


def _pattern(text: str) -> Pattern:
    return tuple(Hole("id") if part == _HOLE else part for part in re.split(f"({_HOLE})", text) if part)


def unclosed(recorded: Recorded) -> Recorded:
    """Arguments without the mark of their end: one before another argument, or else the last one."""
    calls = format_of(recorded).calls
    shape = calls.shape if calls is not None else None
    if calls is None or not isinstance(shape, Tagged | NestedTags):
        return recorded
    marks = value_marks(calls)
    end = _expression((calls.call_end,))
    if isinstance(shape, Tagged):
        own, begin = re.escape(shape.lead + shape.value_end.strip()), re.escape(marks.begin)
    else:
        own, begin = rf"(?!{end}){re.escape(shape.mark)}</\w+>", rf"{re.escape(marks.begin)}\w+>"
    between, last = (re.compile(rf"{own}\s*(?={behind})") for behind in (begin, end))

    def change(text: str) -> str:
        found = between.sub("\n", text, 1)
        return last.sub("\n", text, 1) if found == text and len(last.findall(text)) == 1 else found

    return _changed(recorded, change)


def doubled(recorded: Recorded) -> Recorded:
    """Marks that end arguments and calls, twice."""
    form = format_of(recorded)
    calls = form.calls
    if calls is None:
        return recorded
    marks = list(form.layout.closers)
    if isinstance(calls.shape, NestedTags):
        expressions = [re.escape(calls.shape.mark) + r"</\w+>"]
    else:
        expressions = [re.escape(mark) for mark in marks]
    if not expressions:
        return recorded
    closing = re.compile("|".join(sorted(expressions, key=len, reverse=True)))
    line = "" if isinstance(calls.shape, Tagged) and value_marks(calls).tight else "\n"
    return _changed(recorded, lambda text: closing.sub(lambda found: found.group() + line + found.group(), text))
