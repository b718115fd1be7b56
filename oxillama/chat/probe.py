"""Probe conversations: what a chat template writes for calls, reasoning and results, found by rendering them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oxillama.chat.template import ChatTemplate, probing
from oxillama.errors import ChatTemplateError, ConfigError

__all__ = ["ARGUMENTS", "CONTENT", "FIRST", "IDS", "NUMBER", "REASON", "SECOND", "Probes", "probes_of"]

USER, CONTENT, REASON = "Qquserqq", "Qqcontentqq", "Qqreasonqq"
FIRST, SECOND = "qqfirst", "qqsecond"
KEYS, VALUES = ("qqkeya", "qqkeyb"), ("qqvaluea", "qqvalueb", "qqvaluec")
ARGUMENTS = {KEYS[0]: VALUES[0], KEYS[1]: VALUES[1]}
NUMBER = 17.25
IDS = ("qqidnum01", "qqidnum02")
_STRINGS = {key: {"type": "string", "description": "Text."} for key in KEYS}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does something.",
            "parameters": {"type": "object", "properties": _STRINGS, "required": [KEYS[0]]},
        },
    }
    for name in (FIRST, SECOND)
]
_THINK = ({"enable_thinking": True, "thinking": True}, {"enable_thinking": False, "thinking": False})
_EFFORTS: tuple[dict[str, Any], ...] = ({}, {"reasoning_effort": "high"}, {"thinking_mode": "enabled"})

MAX_TEXT = 1 << 18  # of one rendering
MAX_WORK = 4_000_000  # units of all renderings
Render = Callable[..., str | None]


@dataclass(frozen=True, slots=True)
class Probes:
    """Renderings of a template, each from behind the user's text; None where the template refuses.

    prompts: what `add_generation_prompt` adds, with reasoning on, off, and not said. content, call, calls,
    content_call: assistant's turns with these; `reasoned` and `reasoned_call` have reasoning too. number: a call with
    a number. nested: one with an object of a list.
    """

    prompts: tuple[str, ...]
    content: str | None
    call: str | None
    calls: str | None
    content_call: str | None
    number: str | None
    nested: str | None
    empty: str | None
    reasoned: str | None
    reasoned_call: str | None
    errors: list[str] = field(default_factory=list)


def probes_of(template: ChatTemplate) -> Probes:
    """Renders all of them; about twenty renderings."""
    errors: list[str] = []
    found: Probes | None = None
    with probing(MAX_WORK):
        for text in (False, True):
            found = _probes(_renderer(template, text, errors), errors)
            if found.call is not None:
                break
    assert found is not None
    return found


def _renderer(template: ChatTemplate, as_text: bool, errors: list[str]) -> Render:
    def render(*messages: dict[str, Any], tools: bool = True, start: bool = False, **extra: Any) -> str | None:
        if as_text:
            messages = tuple(_with_text(message) for message in messages)
        try:
            text = template.render(
                [{"role": "user", "content": USER}, *messages],
                tools=TOOLS if tools else None,
                add_generation_prompt=start,
                **{name: value for name, value in extra.items() if name in template.variables},
            )
        except (ConfigError, ChatTemplateError, TypeError) as error:
            errors.append(str(error))
            return None
        if len(text) > MAX_TEXT:
            errors.append(f"a short conversation becomes {len(text)} characters")
            return None
        at = text.rfind(USER)
        return text[at + len(USER) :] if at >= 0 else None

    return render


def _with_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _assistant(content: str, *calls: tuple[str, dict[str, Any]], reason: bool = False) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}
            for id, (name, arguments) in zip(IDS, calls, strict=False)
        ]
    if reason:
        message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), REASON)
    return message


def _probes(render: Render, errors: list[str]) -> Probes:
    def first(*messages: dict[str, Any], wanted: Sequence[str]) -> str | None:
        """The first rendering that has all of these texts, with the variables that templates need for them."""
        for extra in ({}, *_THINK[:1], *_EFFORTS[1:]):
            for tools in (True, False):
                text = render(*messages, tools=tools, **extra)
                if text is not None and all(word in text for word in wanted):
                    return text
        return None

    one = (FIRST, ARGUMENTS)
    two = (SECOND, {KEYS[0]: VALUES[2]})
    prompts: dict[str, None] = {}
    for extra in ({}, *_THINK, *_EFFORTS[1:]):
        for tools in (True, False):
            text = render(tools=tools, start=True, **extra)
            if text is not None:
                prompts.setdefault(text)
    content = first(_assistant(CONTENT), wanted=[CONTENT])
    return Probes(
        prompts=tuple(prompts),
        content=content,
        call=first(_assistant("", one), wanted=[FIRST, *VALUES[:2]]),
        calls=first(_assistant("", one, two), wanted=[FIRST, SECOND, VALUES[2]]),
        content_call=first(_assistant(CONTENT, one), wanted=[CONTENT, FIRST, VALUES[0]]),
        number=first(_assistant("", (FIRST, {KEYS[0]: NUMBER})), wanted=[FIRST, "17.25"]),
        nested=first(
            _assistant("", (FIRST, {KEYS[0]: [{"qqinner": VALUES[0]}], KEYS[1]: [VALUES[1]]})),
            wanted=[FIRST, VALUES[0]],
        ),
        empty=first(_assistant("", (FIRST, {})), wanted=[FIRST]),
        reasoned=first(_assistant(CONTENT, reason=True), wanted=[REASON, CONTENT]),
        reasoned_call=first(_assistant("", one, reason=True), wanted=[REASON, FIRST]),
        errors=errors,
    )
