"""Presence of messages in a prompt: templates leave out what they have no place for, and say nothing."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from oxillama.chat.messages import called, texts_of
from oxillama.errors import MessageError

__all__ = ["check_arguments", "check_presence", "unused_word"]

Message = dict[str, Any]
_COMMON_ROLES = ("user", "assistant")


def check_presence(
    messages: Sequence[Message],
    prompt: str,
    prints: Callable[[str], bool],
    render: Callable[[Sequence[Message]], str],
) -> None:
    """Raises MessageError, which names the first message whose text isn't in the prompt.

    A text is there if it stands in the prompt behind that of the message before, as it is or as JSON text has it. Else
    every text is replaced by a word, and the word is to be printed: templates may cut a text, or print it in another
    form or order. What a model said beside its calls, and its reasoning, may be left out, as templates have it.

    prints: whether messages of a role are printed in a short conversation. render: the prompt of other messages; ""
    where the template raises, as for a result that isn't the JSON that it reads.
    """
    roles = {message["role"] for message in messages}
    if all(role in _COMMON_ROLES or prints(role) for role in roles) and _is_in_order(messages, prompt):
        return
    word = unused_word(prompt)
    marked = [_marked(message, f"{word}n{i}n") for i, message in enumerate(messages)]
    output = render(marked)
    if not output:  # results may have to be JSON
        marked = [m if m["role"] == "tool" else other for m, other in zip(messages, marked, strict=True)]
        output = render(marked)
    if not output:
        return
    for i, (message, other) in enumerate(zip(messages, marked, strict=True)):
        if other is not message and _is_needed(message) and f"{word}n{i}n" not in output:
            raise MessageError(
                f"messages[{i}] is not in the prompt: the chat template leaves out this message of the role "
                f"{message['role']!r}, {_shown(message)}"
            )


def check_arguments(
    messages: Sequence[Message], wrong: Collection[str], prompt: str, render: Callable[[Sequence[Message]], str]
) -> None:
    """Raises MessageError if arguments of calls that are no JSON objects (`wrong`) aren't in the prompt.

    As with `check_presence`, they may stand there in another form: then words in their place have to.
    """
    if not wrong or _are_in_order(messages, wrong, prompt):
        return
    word = unused_word(prompt)
    output = render([_with_words(message, wrong, f"{word}n{i}n") for i, message in enumerate(messages)])
    found = set(re.findall(rf"{word}n\d+n", output))
    for i, message in enumerate(messages):
        if any(_is_wrong(call, wrong) for call in message.get("tool_calls", ())) and f"{word}n{i}n" not in found:
            raise MessageError(f"messages[{i}] has calls whose arguments are no JSON, and aren't in the prompt")


def _are_in_order(messages: Sequence[Message], wrong: Collection[str], prompt: str) -> bool:
    at = 0
    for message in messages:
        for call in message.get("tool_calls", ()):
            if _is_wrong(call, wrong):
                at = _behind(called(call)["arguments"].strip(), prompt, at)
                if at < 0:
                    return False
    return True


def _with_words(message: Message, wrong: Collection[str], word: str) -> Message:
    """A message with a word in the place of each of the wrong arguments of its calls."""
    if "tool_calls" not in message:
        return message
    made = []
    for call in message["tool_calls"]:
        function = {**called(call), "arguments": word} if _is_wrong(call, wrong) else called(call)
        made.append({**call, "function": function} if "function" in call else function)
    return message | {"tool_calls": made}


def _is_wrong(call: Mapping[str, Any], wrong: Collection[str]) -> bool:
    given = called(call).get("arguments")
    return isinstance(given, str) and given in wrong


def unused_word(*texts: str) -> str:
    """A word that stands in none of the texts."""
    word, n = "oxmark", 0
    while any(word in text for text in texts):
        word, n = f"oxmark{n}x", n + 1
    return word


def _is_in_order(messages: Sequence[Message], prompt: str) -> bool:
    at = 0
    for message in messages:
        if not _is_needed(message):
            continue
        for text in texts_of(message["content"]):
            at = _behind(text.strip(), prompt, at)
            if at < 0:
                return False
    return True


def _behind(text: str, prompt: str, at: int) -> int:
    """The place behind a text that stands at `at` or later; -1 if there is none."""
    found = prompt.find(text, at)
    if found >= 0:
        return found + len(text)
    forms = json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]
    return next((found + len(form) for form in forms if (found := prompt.find(form, at)) >= 0), -1)


def _is_needed(message: Message) -> bool:
    if message["role"] == "assistant" and message.get("tool_calls"):
        return False
    return any(text.strip() for text in texts_of(message["content"]))


def _marked(message: Message, word: str) -> Message:
    """A message with the word in the place of its texts."""
    if not _is_needed(message):
        return message
    content = message["content"]
    if isinstance(content, str):
        return message | {"content": word}
    return message | {"content": [part | {"text": word} for part in content]}


def _shown(message: Message) -> str:
    return repr(" ".join(texts_of(message["content"])))[:60]
