"""Continuation of an answer: the prompt that ends within the last message, at the end of its text or reasoning."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from oxillama.chat.messages import REASONING_FIELDS, as_part, texts_of
from oxillama.chat.presence import unused_word
from oxillama.errors import ChatTemplateError, ConfigError, MessageError

__all__ = ["check_continuation", "continued"]

Message = dict[str, Any]
_REASONING = REASONING_FIELDS[0]
# What opens reasoning at the end of a prompt: "<think>", "[THINK]", "<seed:think>".
_OPENED = re.compile(r"[<\[][^<>\[\]/\s]*think[^<>\[\]/\s]*[>\]]\s*\Z", re.IGNORECASE)


def check_continuation(wanted: object, messages: Sequence[Message]) -> str | None:
    """The field of the last message to go on from, "content" or "reasoning_content"; None if there is none.

    wanted: False, True (the content, or the reasoning if there is none) or the field's name.

    Raises ConfigError for other values, MessageError for a last message that can't be gone on with.
    """
    if wanted is False or wanted is None:
        return None
    names = ("content", *REASONING_FIELDS)
    if wanted is not True and wanted not in names:
        listed = ", ".join(map(repr, names))
        raise ConfigError(f"continue_final_message must be True, False or one of {listed}, not {wanted!r:.60}")
    place, last = f"messages[{len(messages) - 1}]", messages[-1]
    if last["role"] != "assistant":
        raise MessageError(
            f"{place}.role must be 'assistant' for continue_final_message, which goes on from the last message, not "
            f"{last['role']!r:.60}"
        )
    if last.get("tool_calls"):
        raise MessageError(f"{place} has tool_calls: only content and reasoning can be gone on with")
    said = any(texts_of(last["content"]))
    reasoning = wanted in REASONING_FIELDS or (wanted is True and not said and _REASONING in last)
    if reasoning and said:
        raise MessageError(f"{place} has a content: its reasoning is over, and only the content can be gone on with")
    if reasoning and _REASONING not in last:
        raise MessageError(f"{place} has no reasoning to go on from: give it as {place}.{_REASONING}")
    return _REASONING if reasoning else "content"


def continued(
    messages: Sequence[Message],
    field: str,
    render: Callable[[Sequence[Message], bool], str],
    frame: Callable[[], tuple[str, str] | None],
) -> str:
    """The prompt that ends with a field of the last message.

    Templates leave reasoning out of answers of earlier turns, and some take the last message for one. What it is to go
    on from is put there as they have it beside calls, or as the generation prompt opens it.

    render: the prompt of messages, which opens the assistant's turn or not. frame: what stands before and after
    reasoning in an answer (`Capabilities.reasoning_frame`). Raises ChatTemplateError if the template doesn't print the
    field as it is.
    """
    *before, last = messages
    text = "".join(texts_of(last[field])[-1:])
    word = unused_word(*(str(message) for message in messages))
    output = render([*before, _with_end(last, field, word)], False)
    end = output.rfind(word)
    reasoning = last.get(_REASONING, "")
    if end >= 0 and output[:end].endswith(text.lstrip()) and reasoning.strip() in output[:end]:
        return output[:end]
    if reasoning and before and (made := _framed(before, reasoning, render, frame)) is not None:
        opened, closing = made
        return opened if field == _REASONING else opened + closing + "".join(texts_of(last["content"]))
    if end >= 0 and field != _REASONING and output[:end].endswith(text.lstrip()):
        return output[:end]
    raise ChatTemplateError(
        f"the chat template doesn't print messages[{len(before)}].{field} as it is: the answer can't be gone on from it"
    )


def _framed(
    before: Sequence[Message],
    reasoning: str,
    render: Callable[[Sequence[Message], bool], str],
    frame: Callable[[], tuple[str, str] | None],
) -> tuple[str, str] | None:
    """The prompt up to the end of reasoning, and what ends it; None if the template has no place for it."""
    found = frame()
    if found is not None:
        return render(before, False) + found[0] + reasoning, found[1]
    opened = render(before, True)
    tag = _OPENED.search(opened)
    if tag is None:
        return None
    name = tag.group().strip()
    return opened + reasoning, f"{name[0]}/{name[1:]}"


def _with_end(message: Message, field: str, word: str) -> Message:
    content = message[field]
    if isinstance(content, str):
        return message | {field: content + word}
    *parts, last = content or as_part("")
    return message | {field: [*parts, last | {"text": last["text"] + word}]}
