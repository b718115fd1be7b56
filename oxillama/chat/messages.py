"""Messages of a conversation: their form checked, and brought into that which chat templates expect."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from oxillama.chat.calls import is_shallow
from oxillama.errors import MessageError

__all__ = ["PART_SEPARATOR", "REASONING_FIELDS", "as_part", "called", "checked_messages", "joined", "texts_of"]

# Between the text parts of one content, where a template takes strings: vLLM and llama.cpp join them with it too.
PART_SEPARATOR = "\n"
# Names under which clients and templates have the reasoning of an answer; the first one is kept.
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
# Fields that are text if they are there at all. OpenAI's client sends None for those that it has no value for.
_TEXT_FIELDS = ("name", "tool_call_id", *REASONING_FIELDS)

Message = dict[str, Any]


def checked_messages(messages: object) -> list[Message]:
    """Messages as dicts of their own, without fields that are None, and with a content each.

    A content that is missing beside `tool_calls` becomes "", as llama.cpp has it: templates that test for None or for a
    missing content treat "" alike, and others would print "None". Reasoning is in `reasoning_content`, under whichever
    of `REASONING_FIELDS` it was given. Arguments of calls that nest too deeply for templates become JSON text.

    Raises MessageError, which names the place of what has another form than OpenAI's clients send, such as
    ``messages[2].content[0].type``. What a model may have written has no wrong form: a call's name may be any text, and
    so may the text of its arguments.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        _refuse("messages", "a list of dicts with 'role' and 'content'", messages)
    if not messages:
        raise MessageError(
            "messages is empty: a conversation needs at least one message, {'role': ..., 'content': ...}"
        )
    return [_checked_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def joined(parts: Sequence[Mapping[str, str]]) -> str:
    """The text of a content's parts."""
    return PART_SEPARATOR.join(part["text"] for part in parts)


def texts_of(content: str | Sequence[Mapping[str, str]]) -> list[str]:
    """The texts that a content has."""
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def as_part(text: str) -> list[dict[str, str]]:
    """A content of one part with this text."""
    return [{"type": "text", "text": text}]


def _checked_message(place: str, message: object) -> Message:
    fields = _mapping(place, message, "a dict with 'role' and 'content'")
    role = fields.get("role")
    if not isinstance(role, str) or not role:
        _refuse(f"{place}.role", "a string of at least one character", role)
    calls = fields.get("tool_calls")
    if calls is not None:
        for i, call in enumerate(_list(f"{place}.tool_calls", calls)):
            _check_call(f"{place}.tool_calls[{i}]", call)
    content = fields.get("content")
    if content is None and not calls:
        null = "its content is None, and " if "content" in fields else ""
        raise MessageError(
            f"{place} must have a content (text, or a list of text parts), or tool_calls: {null}it has "
            f"{', '.join(map(str, fields))}"
        )
    if content is None:
        content = ""
    elif not isinstance(content, str):
        for i, part in enumerate(_list(f"{place}.content", content, "text or a list of text parts")):
            _check_part(f"{place}.content[{i}]", part)
    for name in _TEXT_FIELDS:
        if not isinstance(fields.get(name), str | None):
            _refuse(f"{place}.{name}", "a string or None", fields[name])
    kept = {name: value for name, value in fields.items() if value is not None and (name != "tool_calls" or value)}
    if calls and any(not is_shallow(called(call).get("arguments")) for call in calls):
        kept["tool_calls"] = [_with_text(f"{place}.tool_calls[{i}]", call) for i, call in enumerate(calls)]
    return _one_reasoning(place, kept) | {"content": content}


def _one_reasoning(place: str, message: Message) -> Message:
    """A message with its reasoning, if it has some, under one name."""
    given = {name: message.pop(name) for name in REASONING_FIELDS if name in message}
    texts = {text for text in given.values() if text}
    if len(texts) > 1:
        names = " and ".join(f"{place}.{name}" for name, text in given.items() if text)
        raise MessageError(f"{names} are different texts: give the reasoning once")
    return message | ({REASONING_FIELDS[0]: texts.pop()} if texts else {})


def _check_part(place: str, part: object) -> None:
    fields = _mapping(place, part, "a dict, {'type': 'text', 'text': ...}")
    kind = fields.get("type")
    if kind != "text":
        raise MessageError(
            f"{place}.type must be 'text', not {_shown(kind)}: images, sound, files and other parts are not supported"
        )
    if not isinstance(fields.get("text"), str):
        _refuse(f"{place}.text", "a string", fields.get("text"))


def _check_call(place: str, call: object) -> None:
    """A call in OpenAI's form, or `function` itself, as some templates expect it."""
    fields = _mapping(place, call, "a dict with 'function'")
    if fields.get("type", "function") != "function":
        raise MessageError(f"{place}.type must be 'function', not {_shown(fields['type'])}")
    if not isinstance(fields.get("id"), str | None):
        _refuse(f"{place}.id", "a string or None", fields["id"])
    if "function" in fields:
        place = f"{place}.function"
        fields = _mapping(place, fields["function"], "a dict with 'name' and 'arguments'")
    if not isinstance(fields.get("name"), str):
        _refuse(f"{place}.name", "a string", fields.get("name"))
    if not isinstance(fields.get("arguments", ""), str | Mapping):
        _refuse(f"{place}.arguments", "a dict, or its JSON text", fields["arguments"])


def called(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """The name and the arguments of a call in either form."""
    inner: Mapping[str, Any] = call.get("function", call)
    return inner


def _with_text(place: str, call: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call with its arguments as JSON text, if they nest too deeply."""
    inner = called(call)
    if is_shallow(inner.get("arguments")):
        return call
    try:
        made = {**inner, "arguments": json.dumps(inner["arguments"], ensure_ascii=False)}
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"{place} has arguments that are no JSON: {error}") from None
    return {**call, "function": made} if "function" in call else made


def _mapping(place: str, value: object, wanted: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return _refuse(place, wanted, value)


def _list(place: str, value: object, wanted: str = "a list of dicts") -> Sequence[object]:
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return value
    return _refuse(place, wanted, value)


def _refuse(place: str, wanted: str, value: object) -> NoReturn:
    raise MessageError(f"{place} must be {wanted}, not {_shown(value)}{_remedy(value)}")


def _shown(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"


def _remedy(value: object) -> str:
    """Remedy that says how an object of a data class becomes a dict."""
    if isinstance(value, type):
        return ""
    if callable(getattr(value, "model_dump", None)):
        return ": give its .model_dump()"
    if hasattr(value, "__dataclass_fields__"):
        return ": give dataclasses.asdict(of it)"
    return ""
