"""Conversations of other dialects, as messages of chat completions."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from oxillama.server.errors import ApiError, own_field
from oxillama.server.field_types import Item, Message, Placed, Tool, Values
from oxillama.server.json_pieces import Body
from oxillama.server.reading import Reading

__all__ = [
    "Translated",
    "Turns",
    "of_items",
    "read_chat_tools",
    "read_moved_tools",
    "renamed",
    "schema_format",
    "text_of",
    "text_parts",
    "tool_names",
]

T = TypeVar("T")
PART_SEPARATOR = "\n"
Content = str | Sequence[Mapping[str, str]]  # a text, or text parts


def text_parts(content: Content) -> list[str]:
    """The texts of a content that is a text or has parts."""
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def text_of(content: Content) -> str:
    """The text of a content that is a text or has parts."""
    return PART_SEPARATOR.join(text_parts(content))


def schema_format(schema: Any) -> Body:
    """The `response_format` of a text that follows a schema."""
    return {"type": "json_schema", "json_schema": {"schema": schema}}


@dataclass(frozen=True)
class Translated:
    """A request of another dialect as one of chat completions.

    names: the fields that the request has for those of `values`; the longest one counts.
    """

    values: Values
    names: Mapping[str, str]


class Turns:
    """Messages that grow: calls and reasoning go to the assistant's message that they belong to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._places: dict[str, str] = {}
        self._call_places: dict[str, str] = {}
        self._reasoning: list[str] = []
        self._thought_at = ""

    @property
    def names(self) -> dict[str, str]:
        """The places in the request of what is in the messages."""
        return self._call_places | self._places

    def say(self, role: str, text: str, place: str) -> None:
        """A message. place: of it in the request."""
        self._places[f"messages[{len(self.messages)}]"] = place
        if role != "assistant":
            self._settle()
        message: Message = {"role": role, "content": text}
        if role == "assistant" and self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
            self._reasoning = []
        self.messages.append(message)

    def think(self, text: str, place: str) -> None:
        """Adds reasoning of the assistant before its next message."""
        self._reasoning.append(text)
        self._thought_at = place

    def call(self, call_id: str, kind: str, called: Item, place: str) -> None:
        """A call of the assistant, in its message before, if there is one. kind: `function` or `custom`."""
        if not self.messages or self.messages[-1]["role"] != "assistant" or self._reasoning:
            self.say("assistant", "", place)
        calls = self.messages[-1].get("tool_calls", [])
        own = f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"
        self._call_places |= {f"{own}.{kind}": place, own: place}
        call = {"id": call_id, "type": kind, kind: called}
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _settle(self) -> None:
        """Reasoning that no message of the assistant follows has one of its own."""
        if self._reasoning:
            self.say("assistant", "", self._thought_at)

    def whole(self) -> list[Message]:
        """All messages."""
        self._settle()
        return self.messages

    def give(self, call_id: str, text: str, place: str) -> None:
        """Adds the result of a call."""
        self._settle()
        self._places[f"messages[{len(self.messages)}]"] = place
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


def of_items(given: Any, instructions: str | None, offered: Offered, reading: Reading) -> Turns:
    """Messages of the input of a response. offered: the names under which the model knows functions."""
    turns = Turns()
    if instructions is not None:
        turns.say("system", instructions, "instructions")
    if isinstance(given, str):
        turns.say("user", given, "input")
        return turns
    items = Placed.of("input", given)
    for place, item in zip(items.places, items, strict=True):
        match item["type"]:
            case "message":
                turns.say(item["role"], text_of(item["content"]), place)
            case "function_call":
                called = {"name": offered.name_of(item), "arguments": item["arguments"]}
                turns.call(item["call_id"], "function", called, place)
            case "custom_tool_call":
                turns.call(item["call_id"], "custom", {"name": offered.name_of(item), "input": item["input"]}, place)
            case "function_call_output" | "custom_tool_call_output":
                turns.give(item["call_id"], text_of(item["output"]), place)
            case "reasoning":
                turns.think(reasoning_of(item, place, reading), place)
    return turns


def reasoning_of(item: Item, place: str, reading: Reading) -> str:
    """The text of a reasoning item: its content, or what an answer of this server was sealed with."""
    text = text_of(item.get("content", ""))
    if not text and item.get("encrypted_content"):
        try:
            return unsealed(item["encrypted_content"])
        except ValueError:
            reading.leave_out(f"{place}.encrypted_content", "it is of another server", "input.encrypted_content")
    return text


_SEAL = "oxillama."


def sealed(text: str) -> str:
    """Reasoning as `encrypted_content`: a text that the client keeps and sends back."""
    return _SEAL + base64.urlsafe_b64encode(text.encode()).decode()


def unsealed(text: str) -> str:
    """The reasoning of an `encrypted_content`. Raises ValueError for that of another server."""
    if not text.startswith(_SEAL):
        raise ValueError("it is not of this server")
    return base64.b64decode(text.removeprefix(_SEAL), altchars=b"-_", validate=True).decode()


class Offered:
    """The names under which the model is shown the tools of a response: their own, where no two are alike.

    Of several that are, those of a namespace are called NAMESPACE.NAME, with a number if that is another one's name.
    custom: the names of custom tools.
    """

    def __init__(self, tools: list[Tool]) -> None:
        counts = Counter(tool["name"] for tool in tools)
        self.names: list[str] = []
        self._own: dict[str, tuple[str, str]] = {}  # namespace and name of each that has a namespace
        for tool in tools:
            space, name = tool.get("namespace"), tool["name"]
            shown = name
            if space is not None:
                shown = name if counts[name] == 1 else self._free(f"{space}.{name}", (space, name), counts)
                self._own[shown] = space, name
            self.names.append(shown)
        kinds = zip(self.names, tools, strict=True)
        self.custom = frozenset(shown for shown, tool in kinds if tool["type"] == "custom")
        self._shown = {own: shown for shown, own in self._own.items()}

    def _free(self, name: str, own: tuple[str, str], taken: Mapping[str, int]) -> str:
        """The name, or one with a number that is no other tool's; a tool that comes twice has the same twice."""
        numbers = count(2)
        found = name
        while found in taken or self._own.get(found, own) != own:
            found = f"{name}_{next(numbers)}"
        return found

    def name_of(self, item: Item) -> str:
        """The name of the function that an item of the input, or a choice, calls."""
        name: str = item["name"]
        return self._shown.get((item.get("namespace", ""), name), name)

    def own(self, shown: str) -> dict[str, str]:
        """Name and namespace of a function that the model called."""
        space, name = self._own.get(shown, ("", shown))
        return {"name": name, "namespace": space} if space else {"name": name}


def read_chat_tools(values: Values, offered: Offered) -> dict[str, Any]:
    """Tools and their choice, as chat completions have them."""
    found: dict[str, Any] = {}
    if "tools" in values:
        found["tools"] = [_chat_tool(tool, name) for tool, name in zip(values["tools"], offered.names, strict=True)]
    choice = values.get("tool_choice")
    if isinstance(choice, Mapping):
        chosen = choice.get("tools", [choice])
        named = [{"type": kind, kind: {"name": offered.name_of(one)}} for one in chosen for kind in [one["type"]]]
        if choice["type"] != "allowed_tools":
            choice = named[0]
        else:
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": named}}
    return found | ({} if choice is None else {"tool_choice": choice})


def _chat_tool(tool: Tool, shown: str) -> Tool:
    """A tool as chat completions have it: under its kind, with the name that the model is shown."""
    kind, own = tool["type"], {name: value for name, value in tool.items() if name not in ("type", "namespace")}
    own["name"] = shown
    if "format" in own and own["format"]["type"] == "grammar":
        grammar = {name: own["format"][name] for name in ("syntax", "definition")}
        own["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: own}


def tool_names(tools: list[Tool], schema: str = "parameters") -> dict[str, str]:
    """The places of tools that are functions themselves; schema: the name of that of their arguments."""
    names = {}
    for i, place in enumerate(Placed.of("tools", tools).places):
        names[f"tools[{i}].custom.format.grammar"] = f"{place}.format"
        names[f"tools[{i}].custom"] = place
        names[f"tools[{i}].function.parameters"] = f"{place}.{schema}"
        names[f"tools[{i}].function"] = place
        if place != f"tools[{i}]":
            names[f"tools[{i}]"] = place
    return names


def read_moved_tools(values: Values) -> dict[str, str]:
    """The places of tools of chat completions behind those that were left out."""
    places = Placed.of("tools", values.get("tools", [])).places
    return {f"tools[{i}]": place for i, place in enumerate(places) if place != f"tools[{i}]"}


def choice_names(choice: Any) -> dict[str, str]:
    """The places of the tools that a choice of responses allows."""
    allowed = choice.get("tools", ()) if isinstance(choice, Mapping) else ()
    return {
        f"tool_choice.allowed_tools.tools[{i}].{one['type']}": f"tool_choice.tools[{i}]"
        for i, one in enumerate(allowed)
    }


def renamed(make: Callable[[], T], names: Mapping[str, str]) -> T:
    """make(), whose errors name the fields that the request has for those of chat completions."""
    try:
        return make()
    except ApiError as error:
        found = None if error.param is None else own_field(error.param, names)
        if found is not None and error.param is not None:
            chat, own = found
            error.param, error.message = own + error.param[len(chat) :], error.message.replace(chat, own)
        raise
