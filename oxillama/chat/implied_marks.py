"""Marks that a chat template tells without writing them: those that it cuts answers at, and calls that it describes."""

import re
from itertools import islice

from oxillama.chat.probe import CONTENT, MAX_WORK, REASON, TOOLS, USER
from oxillama.chat.shapes import CallFormat, JsonCall, KeyKind, ReasoningFormat
from oxillama.chat.template import ChatTemplate, probing
from oxillama.errors import ChatTemplateError, ConfigError

__all__ = ["cut_reasoning", "told_calls"]

MOST_MARKS = 8  # of which each takes a rendering
# Marks that end something, in the template's source.
_INSIDE = r"[^<>\s'\"{}]{0,40}"
_END = re.compile(rf"</[A-Za-z]{_INSIDE}>|\[/[A-Z][A-Z_ ]{{1,40}}\]|<[|｜]{_INSIDE}(?:end|END|close|suffix){_INSIDE}>")
_PAIRS = (("</", "<"), ("[/", "["), ("END", "START"), ("end", "begin"), ("end", "start"), ("close", "open"))
_NAMES = ("name", "function", "tool", "tool_name", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "params", "kwargs")
# An object with two keys between marks, as templates describe calls to their model.
_CALL = re.compile(
    r"(?P<begin><[^<>/\s][^<>]{0,40}>|\[[A-Z][A-Z_ ]{1,40}\])(?P<space>\s*)"
    r"\{\s*\\?[\"'](?P<first>\w+)\\?[\"']\s*:(?:\s*\{[^{}]{0,80}\}\s*|[^{}\[\]]{1,80}?),\s*"
    r"\\?[\"'](?P<second>\w+)\\?[\"']\s*:[^\[\]]{1,200}?\}\s*"
    r"(?P<end></[^<>]{1,40}>|\[/[A-Z][A-Z_ ]{1,40}\]|<\|[^<>]{1,40}\|>)"
)


def _rendered(template: ChatTemplate, messages: list[dict[str, str]], tools: bool) -> str:
    """A rendering; "" if the template refuses."""
    try:
        with probing(MAX_WORK // MOST_MARKS):
            return template.render(messages, tools=TOOLS if tools else None, add_generation_prompt=False)
    except (ConfigError, ChatTemplateError, TypeError):
        return ""


def cut_reasoning(template: ChatTemplate) -> ReasoningFormat | None:
    """Marks of reasoning, if the template leaves out what stands before their end in answers of the history."""
    ends = dict.fromkeys(_END.findall(template.source))
    question = {"role": "user", "content": USER}
    for end in islice(ends, MOST_MARKS):
        begin = _counterpart(end, template.source)
        answer = {"role": "assistant", "content": f"{begin}{REASON}{end}{CONTENT}"}
        last = {"role": "assistant", "content": "Yes."}  # some keep the reasoning of the last answer
        text = _rendered(template, [question, answer, question, last, question], False)
        if CONTENT in text and REASON not in text:
            return ReasoningFormat(begin, end)
    return None


def _counterpart(end: str, source: str) -> str:
    """The mark that opens what another one ends: one of the source, or else the likeliest."""
    found = [end.replace(a, b, 1) for a, b in _PAIRS if a in end]
    return next((begin for begin in found if begin in source), found[0] if found else "")


def told_calls(template: ChatTemplate) -> CallFormat | None:
    """The format of calls that the template describes to the model beside the tools."""
    text = _rendered(template, [{"role": "user", "content": USER}], True)
    for found in _CALL.finditer(text):
        first, second = (_kind(found[group]) for group in ("first", "second"))
        if first is None or second is None or first == second:
            continue
        keys = ((found["first"], first, ""), (found["second"], second, ""))
        return CallFormat(JsonCall(keys), (), (found["begin"] + found["space"],), found["end"], "\n")
    return None


def _kind(key: str) -> KeyKind | None:
    """Kind of the value that a key of a described call has."""
    return "name" if key in _NAMES else "arguments" if key in _ARGUMENTS else None
