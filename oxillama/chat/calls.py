"""Tool calls as data, and their parser from a model's JSON."""

import json
import math
from dataclasses import dataclass
from typing import Any

from oxillama._util.json_values import fields_as_json, json_value

__all__ = ["AnyToolCall", "BrokenToolCall", "ToolCall", "assistant_message", "call_id", "has_halves", "read_json"]

ARGUMENT_KEYS = ("arguments", "parameters")


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


def read_json(text: str, *, halves: bool = False) -> Any:
    """JSON as Python values. Raises ValueError for ambiguous or invalid text: keys that come twice, numbers that no
    float can hold, halves of surrogate pairs (which `halves` lets through), too deep nesting."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if not halves and "\\u" in text and has_halves(value):
        raise ValueError("a string holds half of a surrogate pair")
    return value


def has_halves(value: Any) -> bool:
    """Whether a string of a value of JSON holds half of a surrogate pair, which is no text."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same key twice")
    return found


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
