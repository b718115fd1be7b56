"""Repairs: messages as clients send them, in the form that a chat template prints."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oxillama.chat.calls import call_id, read_json
from oxillama.chat.capabilities import Capabilities, with_reasoning, with_text_arguments
from oxillama.chat.messages import PART_SEPARATOR, REASONING_FIELDS, as_part, joined, texts_of
from oxillama.errors import MessageError

__all__ = ["in_form", "system_in_turns", "without_system"]

Message = dict[str, Any]
_REASONING = REASONING_FIELDS[0]
_SHORT_ID = 9
_SYSTEM = ("system", "developer")


def in_form(messages: Sequence[Message], able: Capabilities) -> list[Message]:
    """Messages (of `checked_messages`) as the template prints them. None is changed in place.

    Raises MessageError for arguments of calls that are no JSON object where the template takes objects.
    """
    found = _named_results(messages)
    found = _with_calls(found, able)
    if any(message["role"] in ("system", "developer") for message in found):
        found = _with_roles(found, able)
    return [_with_content(_with_reasoning(message, able), able) for message in found]


# ---- roles


def _with_roles(messages: Sequence[Message], able: Capabilities) -> list[Message]:
    """A developer's message as that of the system, and the system's in those of other roles, where the template knows
    none, or none where it stands."""
    found: list[Message] = []
    for message in messages:
        if message["role"] != "developer" or able.developer:
            found.append(message)
        elif found and found[-1]["role"] == "system":  # templates print one of them
            found[-1] = message | {"role": "system", "content": _both(found[-1]["content"], message["content"])}
        else:
            found.append(message | {"role": "system"})
    if not able.system:
        return list(_moved(system_in_turns(found), ("system",)))
    n = _n_first(found)
    later = {message["role"] for message in found[n:]}.intersection(_SYSTEM)
    return found if all(map(able.in_midst, later)) else [*found[:n], *_later_in_turns(found[n:])]


def _n_first(messages: Sequence[Message]) -> int:
    """How many messages of the system begin a conversation."""
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
    first = list(messages[:1])
    for message in messages[1:n]:
        first = [first[0] | {"content": _both(first[0]["content"], message["content"])}]
    return [*first[:n], *_later_in_turns(messages[n:])]


def _later_in_turns(messages: Sequence[Message]) -> list[Message]:
    """Messages behind those of the system that begin a conversation, with later ones in turns."""
    found: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if message["role"] in _SYSTEM:
            waiting.append(message)
            continue
        if waiting and message["role"] == "user":
            message = message | {"content": _both(_marked(waiting), message["content"])}
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
        found[-1] = last | {"content": _both(last["content"], _marked(waiting))}
    else:
        found.append({"role": "user", "content": _marked(waiting)})


def _marked(messages: Sequence[Message]) -> str:
    """The text of the system's messages in one of another role."""
    text = PART_SEPARATOR.join(part for message in messages for part in texts_of(message["content"]))
    return f"<system>{PART_SEPARATOR}{text}{PART_SEPARATOR}</system>"


def _moved(messages: Sequence[Message], roles: tuple[str, ...]) -> Iterator[Message]:
    said: Any = None
    for message in messages:
        if message["role"] in roles:
            said = message["content"] if said is None else _both(said, message["content"])
            continue
        if said is not None and message["role"] == "user":
            message, said = message | {"content": _both(said, message["content"])}, None
        elif said is not None:
            yield {"role": "user", "content": said}
            said = None
        yield message
    if said is not None:
        yield {"role": "user", "content": said}


def _both(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return first + PART_SEPARATOR + second
    return [part for content in (first, second) for part in (as_part(content) if isinstance(content, str) else content)]


# ---- calls and what they returned


def _named_results(messages: Sequence[Message]) -> list[Message]:
    """Results with the id and the name of their call, which some templates print and clients may leave out.

    A result without either is that of the first call of its turn that has none yet.
    """
    found: list[Message] = []
    open_calls: list[tuple[Any, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = message.get("tool_calls", ())
            open_calls = [(call.get("id"), call.get("function", call)["name"]) for call in calls]
        elif message["role"] == "tool":
            at = _call_of(message, open_calls)
            if at is not None:
                known = dict(zip(("tool_call_id", "name"), open_calls.pop(at), strict=True))
                message = {name: value for name, value in known.items() if value is not None} | message
        found.append(message)
    return found


def _call_of(result: Message, calls: Sequence[tuple[Any, Any]]) -> int | None:
    """The number of the call that a result is of."""
    given = result.get("tool_call_id"), result.get("name")
    for at, call in enumerate(calls):
        if all(mine is None or its is None or mine == its for mine, its in zip(given, call, strict=True)):
            return at
    return None


def _with_calls(messages: Sequence[Message], able: Capabilities) -> list[Message]:
    """Messages with arguments and ids of calls as the template takes them."""
    if not any("tool_calls" in message for message in messages):
        return list(messages)
    found = list(map(with_text_arguments, messages)) if able.text_arguments else list(_with_objects(messages))
    return list(_with_short_ids(found)) if able.short_ids else found


def _with_objects(messages: Sequence[Message]) -> Iterator[Message]:
    for i, message in enumerate(messages):
        if "tool_calls" not in message:
            yield message
            continue
        calls = []
        for n, call in enumerate(message["tool_calls"]):
            place = f"messages[{i}].tool_calls[{n}]"
            if "function" in call:
                calls.append({**call, "function": _with_object(f"{place}.function", call["function"])})
            else:
                calls.append(_with_object(place, call))
        yield message | {"tool_calls": calls}


def _with_object(place: str, function: Mapping[str, Any]) -> dict[str, Any]:
    given = function.get("arguments", {})
    if isinstance(given, str):
        try:
            given = read_json(given) if given.strip() else {}
        except ValueError as error:
            raise MessageError(f"{place}.arguments must be a dict, or its JSON text: {error}") from None
        if not isinstance(given, dict):
            raise MessageError(
                f"{place}.arguments must be a dict, or its JSON text, not that of {type(given).__name__} {given!r:.60}"
            )
    return {**function, "arguments": given}


def _with_short_ids(messages: Sequence[Message]) -> Iterator[Message]:
    """Other ids than nine letters and digits are replaced, each by the same everywhere."""
    taken = {call.get("id") for message in messages for call in message.get("tool_calls", ())}
    free = (name for name in map(call_id, range(len(taken) * 2 + 1)) if name not in taken)
    short: dict[str, str] = {}

    def shortened(given: str) -> str:
        if len(given) == _SHORT_ID and given.isalnum():
            return given
        return short[given] if given in short else short.setdefault(given, next(free))

    for message in messages:
        fields: Message = {}
        if isinstance(message.get("tool_call_id"), str):
            fields["tool_call_id"] = shortened(message["tool_call_id"])
        if "tool_calls" in message:
            calls = message["tool_calls"]
            fields["tool_calls"] = [{**c, "id": shortened(c["id"])} if c.get("id") else c for c in calls]
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
