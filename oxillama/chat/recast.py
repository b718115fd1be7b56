"""Recast conversations: what a chat template refuses, said in other forms that it may take.

Templates have rules that conversations don't keep: that roles take turns, that a result follows its call, that there is
one call at a time. What a model wrote breaks them (a call that was cut off, an answer without a word), and so does what
clients send (two messages in a row, a question behind a result). Nothing that was said is left out in any form.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from oxillama.chat.calls import call_text
from oxillama.chat.capabilities import with_text_arguments
from oxillama.chat.messages import PART_SEPARATOR, REASONING_FIELDS, called, joined, texts_of
from oxillama.chat.repairs import both, system_in_turns, together, without_system

__all__ = ["recasts"]

Message = dict[str, Any]
_REASONING = REASONING_FIELDS[0]
_SPEAKERS = ("user", "assistant")


def recasts(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Forms of a conversation (of `checked_messages`), the nearest to what was given first; none of them twice."""
    known: list[Sequence[Message]] = [messages]
    for make in _FORMS:
        found = make(messages)
        if found not in known:
            known.append(found)
            yield found


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    """Each of several calls in a message of its own, with its results."""
    found: list[Message] = []
    for message, results in _with_results(system_in_turns(messages)):
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            found += [message, *results]
            continue
        left = list(results)
        for i, call in enumerate(calls):
            own = [result for result in left if call.get("id") and result.get("tool_call_id") == call["id"]]
            own = own or [result for result in left if "tool_call_id" not in result][:1]
            own = left if i == len(calls) - 1 else own
            left = [result for result in left if not any(result is other for other in own)]
            head = {"role": message["role"], "content": ""} if i else message
            found += [head | {"tool_calls": [call]}, *own]
    return found


def _with_results(messages: Sequence[Message]) -> Iterator[tuple[Message, list[Message]]]:
    """Messages, each with the results of its calls that follow it."""
    group: tuple[Message, list[Message]] | None = None
    for message in messages:
        if group is not None and group[0].get("tool_calls") and message["role"] == "tool":
            group[1].append(message)
            continue
        if group is not None:
            yield group
        group = message, []
    if group is not None:
        yield group


def _without_lone_results(messages: Sequence[Message]) -> list[Message]:
    """Results that follow no call as text of the user."""
    found: list[Message] = []
    for message, results in _with_results(_one_by_one(messages)):
        found += [_as_user(message) if message["role"] == "tool" else message, *results]
    return found


def _in_turns(messages: Sequence[Message]) -> list[Message]:
    """Messages in a row of the same role as one, without answers that say nothing."""
    return _taking_turns(_without_lone_results(messages))


def _taking_turns(messages: Sequence[Message]) -> list[Message]:
    rows: list[list[Message]] = []
    for message in filter(_says_something, messages):
        last = rows[-1][-1] if rows else {}
        same = message["role"] in _SPEAKERS and message["role"] == last.get("role") and not last.get("tool_calls")
        if same:
            rows[-1].append(message)
        else:
            rows.append([message])
    return [row[0] if len(row) == 1 else _one_of(row) for row in rows]


def _says_something(message: Message) -> bool:
    if message["role"] != "assistant" or message.get("tool_calls") or message.get(_REASONING):
        return True
    return any(texts_of(message["content"]))


def _one_of(row: Sequence[Message]) -> Message:
    """Messages of the same role as one."""
    said = [message["content"] for message in row if message["content"]]
    thoughts = [message[_REASONING] for message in row if message.get(_REASONING)]
    made: Message = {}
    for message in row:
        made |= message
    made["content"] = together(said) if said else ""
    return made | ({_REASONING: PART_SEPARATOR.join(thoughts)} if thoughts else {})


def _separated(text: str) -> Callable[[Sequence[Message]], list[Message]]:
    """An answer with this text between calls, or their results, and what the user says next."""

    def make(messages: Sequence[Message]) -> list[Message]:
        found: list[Message] = []
        for message in _in_turns(messages):
            behind = found and (found[-1]["role"] == "tool" or found[-1].get("tool_calls"))
            if behind and message["role"] == "user":
                found.append({"role": "assistant", "content": text})
            found.append(message)
        return found

    return make


def _as_text(messages: Sequence[Message]) -> list[Message]:
    """Calls as text of the answers, and results as text of the user."""
    return _taking_turns([_plain(message) for message in system_in_turns(messages)])


def _as_text_alone(messages: Sequence[Message]) -> list[Message]:
    """Messages with the system's in those of the user."""
    return _taking_turns(without_system(_as_text(messages)))


def _plain(message: Message) -> Message:
    if message["role"] == "tool":
        return _as_user(message)
    if not message.get("tool_calls"):
        return message
    functions = map(called, with_text_arguments(message)["tool_calls"])
    text = PART_SEPARATOR.join(call_text(one["name"], one.get("arguments") or "{}") for one in functions)
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return kept | {"content": both(message["content"], text) if message["content"] else text}


def _as_user(result: Message) -> Message:
    """Result of a tool as the user's message."""
    content = result["content"]
    text = content if isinstance(content, str) else joined(content)
    return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}


_FORMS = (
    system_in_turns,
    without_system,
    _one_by_one,
    _without_lone_results,
    _in_turns,
    _separated(""),
    _separated(" "),
    _as_text,
    _as_text_alone,
)
