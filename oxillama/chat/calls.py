"""Tool calls as data, and their parser from a model's JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oxillama._util.checks import is_unicode
from oxillama._util.json_tree import JsonTooMuch
from oxillama._util.json_values import LARGE, fields_as_json, json_value, large_json, unique_keys

__all__ = [
    "AnyToolCall",
    "BrokenToolCall",
    "ToolCall",
    "assistant_message",
    "call_id",
    "call_text",
    "has_halves",
    "is_shallow",
    "read_argument_object",
    "read_json",
]

ARGUMENT_KEYS = ("arguments", "parameters")
MAX_DEPTH = 64  # levels of arguments, of which templates, clients and servers can take no more either


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's call of a function.

    name, arguments: as the model wrote them, not yet checked against a tool.
    id: the model's own, or a generated one: nine letters and digits, as some templates demand.
    offset: number of characters of the answer's text before it.
    raw: its text, with delimiters; calls of one list share it.
    """

    name: str
    arguments: dict[str, Any]
    id: str
    offset: int = 0
    raw: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The fields in OpenAI's form, with arguments as JSON text: id, type "function", function; offset and raw."""
        arguments = json.dumps(json_value(self.arguments), ensure_ascii=False, allow_nan=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function, "offset": self.offset, "raw": self.raw}


@dataclass(frozen=True, slots=True)
class BrokenToolCall:
    """A call that can't be parsed; its text is kept.

    raw: the text. error: the reason. complete: False if the answer ended before the call did. begun: whether pieces of
    it were given while it was written, since its name could be read. name, arguments: these pieces, the arguments as
    the beginning of JSON text; "" if it wasn't begun.
    """

    raw: str
    error: str
    complete: bool
    id: str
    offset: int = 0
    begun: bool = False
    name: str = ""
    arguments: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, and type "broken"."""
        return {"type": "broken", **fields_as_json(self)}


AnyToolCall = ToolCall | BrokenToolCall


def call_id(number: int) -> str:
    """An id of nine letters and digits for the call with this number in a conversation."""
    return f"call{number % 100_000:05d}"


def read_json(text: str, *, halves: bool = False, any_number: bool = False) -> Any:
    """JSON as Python values. Raises ValueError for ambiguous or invalid text: keys that come twice, numbers that no
    float can hold (which `any_number` lets through), halves of surrogate pairs (`halves`), too deep nesting."""
    if len(text) > LARGE and not any_number and is_unicode(text):
        return _read_large(text, halves)
    numbers: dict[str, Any] = {} if any_number else {"parse_float": _float, "parse_constant": _constant}
    try:
        value = json.loads(text, object_pairs_hook=unique_keys, **numbers)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if not halves and "\\u" in text and has_halves(value):
        raise ValueError("a string holds half of a surrogate pair")
    return value


def _read_large(text: str, halves: bool) -> Any:
    """Reads a large text as `read_json` does, while other threads run."""
    tree = large_json(text)
    try:
        value = tree.read()
    except JsonTooMuch:
        raise ValueError("it nests too deeply") from None
    if tree.has_halves and not halves and has_halves(value):
        raise ValueError("a string holds half of a surrogate pair")
    return value


def read_argument_object(text: str) -> dict[str, Any]:
    """The arguments of a call from their JSON text; "" and spaces are none, {}.

    Raises ValueError for what `read_json` refuses, for other values than objects, and for more than 64 levels.
    """
    found = read_json(text) if text.strip() else {}
    if not isinstance(found, dict):
        raise ValueError("its arguments are no object")
    if text.count("{") + text.count("[") > MAX_DEPTH and not is_shallow(found):
        raise ValueError("it nests too deeply")
    return found


def is_shallow(value: Any) -> bool:
    """Whether a JSON value has at most 64 levels of objects and lists."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = {id(item): item for item in level if isinstance(item, Mapping | list | tuple)}  # shared ones once
        if not inner:
            return True
        level = [x for item in inner.values() for x in (item.values() if isinstance(item, Mapping) else item)]
    return False


def call_text(name: str, arguments: str) -> str:
    """A call as text, for templates that have no place for it: an object between the tags of Hermes' format.

    arguments: as the model wrote them, JSON or not.
    """
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n</tool_call>'


def has_halves(value: Any) -> bool:
    """Whether a string of a value of JSON holds half of a surrogate pair, which is no text."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text:.40} is too large")
    return number


def _constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def assistant_message(text: str, calls: list[AnyToolCall]) -> dict[str, Any]:
    """An answer as a message for the next turn: content, and the calls in the form of chat templates.

    Calls that could not be parsed stay in the content, at their place.
    """
    pieces, at = [], 0
    for call in calls:
        if isinstance(call, BrokenToolCall):
            pieces += [text[at : call.offset], call.raw]
            at = call.offset
    message: dict[str, Any] = {"role": "assistant", "content": "".join([*pieces, text[at:]])}
    described = [
        {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
        if isinstance(call, ToolCall)
    ]
    return {**message, "tool_calls": described} if described else message
