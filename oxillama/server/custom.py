"""Custom tools, whose input is a text: for the model they are functions with one argument."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from oxillama.grammar.regex import parse_regex
from oxillama.server.errors import bad_value
from oxillama.server.field_types import Item, Message, Tool, Values
from oxillama.server.reading import Reading

__all__ = ["FaultOf", "InputReader", "custom_names", "plain_messages", "read_functions"]

FaultOf = Callable[[str, str], str]
ARGUMENT = "input"
_BEGIN = re.compile(rf'\s*\{{\s*"{ARGUMENT}"\s*:\s*"')
# What a string of JSON is made of, in pieces that can be read by themselves: a pair of surrogates is one of them.
_PIECES = re.compile(
    r'(?:[^"\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r"|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\[^u])+"
)


def custom_names(tools: list[Tool]) -> frozenset[str]:
    """The names of custom tools, as chat completions or as responses describe them."""
    return frozenset(tool.get("custom", tool)["name"] for tool in tools if tool["type"] == "custom")


def read_functions(values: Values, fault_of: FaultOf, reading: Reading) -> tuple[dict[str, Any], dict[str, str]]:
    """Tools and their choice with functions alone, and the fields that the request has for theirs.

    fault_of: why no grammar can hold texts to a source of this kind, "" if one can. A grammar of another kind is left
    out. Raises ApiError.
    """
    found = {name: values[name] for name in ("tools", "tool_choice") if name in values}
    names: dict[str, str] = {}
    if "tools" in found:
        found["tools"] = [_function(i, tool, fault_of, reading) for i, tool in enumerate(found["tools"])]
        for i, tool in enumerate(values["tools"]):
            if tool["type"] == "custom":
                names[f"tools[{i}].function.parameters"] = f"tools[{i}].custom.format.grammar.definition"
                names[f"tools[{i}].function"] = f"tools[{i}].custom"
    choice = found.get("tool_choice")
    if isinstance(choice, Mapping):
        if values.get("tools"):  # without any, it is refused as a whole
            _check_chosen(values["tools"], choice)
        found["tool_choice"] = _named(choice)
    return found, names


def _check_chosen(tools: list[Tool], choice: Item) -> None:
    """Raises ApiError for a choice of what is no tool of its kind."""
    is_one = choice["type"] != "allowed_tools"
    for i, one in enumerate([choice] if is_one else choice["allowed_tools"]["tools"]):
        kind = one["type"]
        known, name = [tool[kind]["name"] for tool in tools if tool["type"] == kind], one[kind]["name"]
        if name not in known:
            place = f"{'tool_choice' if is_one else f'tool_choice.allowed_tools.tools[{i}]'}.{kind}.name"
            wanted = f"one of {', '.join(known)}" if known else f"that of a tool, none of which is of type {kind!r}"
            raise bad_value(place, f"{place} must be {wanted}, not {name!r}")


def _function(i: int, tool: Tool, fault_of: FaultOf, reading: Reading) -> Item:
    if tool["type"] != "custom":
        return tool
    own = tool["custom"]
    form, argument = own.get("format", {"type": "text"}), {"type": "string"}
    if form["type"] == "grammar" and form["grammar"]["syntax"] != "regex":
        reading.leave_out(f"tools[{i}].custom.format.grammar.syntax={form['grammar']['syntax']}", "give a pattern")
    elif form["type"] == "grammar":
        place, definition = f"tools[{i}].custom.format.grammar.definition", form["grammar"]["definition"]
        if fault := fault_of("regex", definition):  # alone: it can't close the group around it then
            raise bad_value(place, f"{place}: {fault}", "invalid_grammar")
        argument["pattern"] = _whole(definition)
    schema = {"type": "object", "properties": {ARGUMENT: argument}, "required": [ARGUMENT],
              "additionalProperties": False}  # fmt: skip
    described = {name: own[name] for name in ("name", "description") if name in own}
    return {"type": "function", "function": {**described, "parameters": schema, "strict": True}}


def _whole(pattern: str) -> str:
    """The valid pattern, to be found in a text only if it matches all of it."""
    tree = parse_regex(pattern)
    if any(part.kind == "ahead" for part in tree.parts) or tree.kind == "ahead":
        return f"^{pattern}$"  # what looks ahead stands behind ^ alone, and has no alternatives beside it
    return f"^(?:{pattern})$"


def _named(choice: Item) -> Item:
    if choice["type"] == "custom":
        return {"type": "function", "function": choice["custom"]}
    if choice["type"] == "allowed_tools":
        allowed = choice["allowed_tools"]
        return {**choice, "allowed_tools": {**allowed, "tools": [_named(one) for one in allowed["tools"]]}}
    return dict(choice)


def plain_messages(messages: list[Message]) -> list[Message]:
    """Messages whose calls of custom tools are calls of functions."""
    return [
        {**message, "tool_calls": list(map(_plain_call, message["tool_calls"]))} if "tool_calls" in message else message
        for message in messages
    ]


def _plain_call(call: Item) -> Item:
    if call["type"] != "custom":
        return call
    own = call["custom"]
    arguments = json.dumps({ARGUMENT: own["input"]}, ensure_ascii=False)
    kept = {name: value for name, value in call.items() if name != "custom"}
    return {**kept, "type": "function", "function": {"name": own["name"], "arguments": arguments}}


class InputReader:
    """Reads the input of a custom tool out of its arguments as they are written: `{"input": "..."}`."""

    def __init__(self) -> None:
        self._text = ""
        self._begun = False

    def read(self, piece: str) -> str:
        """The text that a further piece of the arguments adds."""
        self._text += piece
        if not self._begun:
            begin = _BEGIN.match(self._text)
            if begin is None:
                return ""
            self._begun, self._text = True, self._text[begin.end() :]
        found = _PIECES.match(self._text)
        if found is None:
            return ""
        self._text = self._text[found.end() :]
        text: str = json.loads(f'"{found.group()}"', strict=False)
        return text
