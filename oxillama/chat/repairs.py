"""Repairs: messages as clients send them, in the form that a chat template prints."""

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from oxillama.chat.calls import call_id, call_text, read_argument_object
from oxillama.chat.capabilities import RAW, Capabilities, with_reasoning
from oxillama.chat.messages import PART_SEPARATOR, REASONING_FIELDS, as_part, called, joined, texts_of

__all__ = ["both", "in_form", "system_in_turns", "together", "without_system"]

Message = dict[str, Any]
_Ids = tuple[Any, Any]  # id and name of a call
_REASONING = REASONING_FIELDS[0]
_SHORT_ID = 9
_SYSTEM = ("system", "developer")


def in_form(messages: Sequence[Message], able: Capabilities) -> tuple[list[Message], set[str]]:
    """Messages (of `checked_messages`) as the template prints them, and the arguments of calls among them that are no
    JSON objects, which are shown as the text that they are. None is changed in place."""
    wrong: set[str] = set()
    found = _with_ids(messages) if able.short_ids else messages
    found = [
        _with_calls(message, able, wrong) if "tool_calls" in message else message for message in _named_results(found)
    ]
    if able.short_ids:
        found = list(_with_short_ids(found))
    if any(message["role"] in ("system", "developer") for message in found):
        found = _with_roles(found, able)
    return [_with_content(_with_reasoning(message, able), able) for message in found], wrong


# ---- roles


def _with_roles(messages: Sequence[Message], able: Capabilities) -> list[Message]:
    """A developer's message as that of the system, and the system's in those of other roles, where the template knows
    none, or none where it stands."""
    rows: list[list[Message]] = []
    for message in messages:
        if message["role"] != "developer" or able.developer:
            rows.append([message])
        elif rows and rows[-1][0]["role"] == "system":  # templates print one of them
            rows[-1].append(message | {"role": "system"})
        else:
            rows.append([message | {"role": "system"}])
    found = [row[-1] | {"content": together([message["content"] for message in row])} for row in rows]
    if not able.system:
        return list(_moved(system_in_turns(found), ("system",)))
    n = _n_first(found)
    later = {message["role"] for message in found[n:]}.intersection(_SYSTEM)
    return found if all(map(able.in_midst, later)) else [*found[:n], *_later_in_turns(found[n:])]


def _n_first(messages: Sequence[Message]) -> int:
    """Number of messages of the system that begin a conversation."""
    return next((i for i, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))


def without_system(messages: Sequence[Message]) -> list[Message]:
    """Messages with those of system and developer in those of other roles."""
    return list(_moved(system_in_turns(messages), _SYSTEM))


def system_in_turns(messages: Sequence[Message]) -> list[Message]:
    """Messages with one of the system at the beginning at most, for templates that know no other.

    Those that begin the conversation are joined. A later one stands in the user's message behind it, or else in the
    last one of the user or of a tool before it, between marks that say whose it is: so no turn is added, and what was
    said stays where it was when the conversation goes on.
    """
    n = _n_first(messages)
    first = [messages[0] | {"content": together([m["content"] for m in messages[:n]])}] if n else []
    return [*first, *_later_in_turns(messages[n:])]


def _later_in_turns(messages: Sequence[Message]) -> list[Message]:
    """Messages behind those of the system that begin a conversation, with later ones in turns."""
    found: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if message["role"] in _SYSTEM:
            waiting.append(message)
            continue
        if waiting and message["role"] == "user":
            message = message | {"content": both(_marked(waiting), message["content"])}
        elif waiting and message["role"] != "tool":
            _attach(found, waiting)
        if message["role"] != "tool":  # what calls gave stands right behind them
            waiting = []
        found.append(message)
    if waiting:
        _attach(found, waiting)
    return found


def _attach(found: list[Message], waiting: Sequence[Message]) -> None:
    """Puts the system's messages into the last one that isn't the assistant's, or into one of the user's own."""
    last = found[-1]
    if last["role"] in ("user", "tool"):
        found[-1] = last | {"content": both(last["content"], _marked(waiting))}
    else:
        found.append({"role": "user", "content": _marked(waiting)})


def _marked(messages: Sequence[Message]) -> str:
    """The text of the system's messages in one of another role."""
    text = PART_SEPARATOR.join(part for message in messages for part in texts_of(message["content"]))
    return f"<system>{PART_SEPARATOR}{text}{PART_SEPARATOR}</system>"


def _moved(messages: Sequence[Message], roles: tuple[str, ...]) -> Iterator[Message]:
    said: list[Any] = []
    for message in messages:
        if message["role"] in roles:
            said.append(message["content"])
            continue
        if said and message["role"] == "user":
            message = message | {"content": together([*said, message["content"]])}
        elif said:
            yield {"role": "user", "content": together(said)}
        said = []
        yield message
    if said:
        yield {"role": "user", "content": together(said)}


def both(first: Any, second: Any) -> Any:
    """One content of two, the second in a line of its own."""
    return together((first, second))


def together(contents: Sequence[Any]) -> Any:
    """One content of several, each in a line of its own."""
    if len(contents) == 1:
        return contents[0]
    if all(isinstance(content, str) for content in contents):
        return PART_SEPARATOR.join(contents)
    return [part for content in contents for part in (as_part(content) if isinstance(content, str) else content)]


# ---- calls and what they returned


def _named_results(messages: Sequence[Message]) -> list[Message]:
    """Results with the id and the name of their call, which some templates print and clients may leave out.

    A result without either is that of the first call of its turn that has none yet. One with an id that no call has
    keeps it, and gets the name of that call, since some templates can't print one without.
    """
    found: list[Message] = []
    calls: list[_Ids] = []
    left: list[_Ids] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = [(call.get("id"), called(call)["name"]) for call in message.get("tool_calls", ())]
            left = list(calls)
        elif message["role"] == "tool" and calls:
            known = _call_of(message, left)
            if known is not None:
                left.remove(known)
            elif "tool_call_id" in message:  # it is another one of the same call, or of none
                known = _call_of(message, calls)
            known = known or (None, (left[:1] or calls[-1:])[0][1])
            named = dict(zip(("tool_call_id", "name"), known, strict=True))
            message = {name: value for name, value in named.items() if value is not None} | message
        found.append(message)
    return found


def _call_of(result: Message, calls: Sequence[_Ids]) -> _Ids | None:
    """The first call that a result may be of."""
    given = result.get("tool_call_id"), result.get("name")
    for call in calls:
        if all(mine is None or its is None or mine == its for mine, its in zip(given, call, strict=True)):
            return call
    return None


def _with_calls(message: Message, able: Capabilities, wrong: set[str]) -> Message:
    """A message with its calls as the template takes them; those that it can't show are text of the content."""
    calls, said = [], []
    for call in message["tool_calls"]:
        function = called(call)
        given = function.get("arguments", {})
        shown = given
        if isinstance(given, str):
            shown = _arguments(given, able, wrong)
        elif able.text_arguments:
            shown = json.dumps(given, ensure_ascii=False)
        if shown is None:
            said.append(call_text(function["name"], given))
            continue
        made = {**function, "arguments": shown}
        calls.append({**call, "function": made} if "function" in call else made)
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    if said:
        text = PART_SEPARATOR.join(said)
        kept["content"] = both(message["content"], text) if message["content"] else text
    return kept | ({"tool_calls": calls} if calls else {})


def _arguments(text: str, able: Capabilities, wrong: set[str]) -> dict[str, Any] | str | None:
    """The text of arguments as the template takes them; None if it can't show those that are no object."""
    try:
        found = read_argument_object(text)
    except ValueError:
        wrong.add(text)
    else:
        return found if not able.text_arguments else text if text.strip() else "{}"
    match able.wrong_arguments:
        case "object":
            held = {RAW: text}
            return json.dumps(held, ensure_ascii=False) if able.text_arguments else held
        case "":
            return None
    return text


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """Messages whose calls have ids, for templates that refuse calls without one."""
    taken = {call.get("id") for message in messages for call in message.get("tool_calls", ())}
    free = (name for name in map(call_id, count()) if name not in taken)
    return [
        message | {"tool_calls": [call if call.get("id") else {**call, "id": next(free)} for call in calls]}
        if (calls := message.get("tool_calls"))
        else message
        for message in messages
    ]


def _with_short_ids(messages: Sequence[Message]) -> Iterator[Message]:
    """Other ids than nine letters and digits are replaced, each by the same everywhere."""
    taken = {call.get("id") for message in messages for call in message.get("tool_calls", ())}
    free = (name for name in map(call_id, count()) if name not in taken)
    short: dict[str, str] = {}

    def shortened(given: str) -> str:
        if len(given) == _SHORT_ID and given.isalnum():
            return given
        return short[given] if given in short else short.setdefault(given, next(free))

    for message in messages:
        fields: Message = {}
        if message["role"] == "tool":
            fields["tool_call_id"] = shortened(message.get("tool_call_id", ""))
        if "tool_calls" in message:
            calls = message["tool_calls"]
            fields["tool_calls"] = [{**c, "id": shortened(c["id"])} for c in calls]
        yield message | fields


# ---- reasoning and content


def _with_reasoning(message: Message, able: Capabilities) -> Message:
    if _REASONING not in message:
        return message
    kept = {name: value for name, value in message.items() if name != _REASONING}
    if message.get("tool_calls") and message["content"] and not able.reasoning_beside_content:
        return kept
    return with_reasoning(kept, message[_REASONING], able.reasoning)


def _with_content(message: Message, able: Capabilities) -> Message:
    """A message with its content as the template prints it: a string, or a list of parts."""
    content = message["content"]
    if isinstance(content, str):
        return message if able.content(message["role"]).strings else message | {"content": as_part(content)}
    if any(part["type"] != "text" for part in content):
        return message
    return message if able.content(message["role"]).parts else message | {"content": joined(content)}
