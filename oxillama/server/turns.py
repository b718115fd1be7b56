"""Conversations of other dialects, as messages of chat completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from oxillama.server.errors import ApiError

__all__ = ["Translated", "Turns", "chat_tools", "of_items", "renamed", "text_of", "tool_names"]

T = TypeVar("T")
PART_SEPARATOR = "\n"


def text_of(content: Any) -> str:
    """The text of a content that is a text or has parts."""
    return content if isinstance(content, str) else PART_SEPARATOR.join(part["text"] for part in content)


@dataclass(frozen=True)
class Translated:
    """A request of another dialect as one of chat completions.

    names: the fields that the request has for those of `values`, the longer ones first.
    """

    values: dict[str, Any]
    names: Mapping[str, str]


class Turns:
    """Messages that grow: calls and reasoning go to the assistant's message that they belong to.

    names: the places in the request of what is in the messages.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self._reasoning: list[str] = []
        self._thought_at = ""

    def say(self, role: str, text: str, place: str) -> None:
        """A message. place: of it in the request."""
        self.names[f"messages[{len(self.messages)}]"] = place
        if role != "assistant":
            self._settle()
        message: dict[str, Any] = {"role": role, "content": text}
        if role == "assistant" and self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
            self._reasoning = []
        self.messages.append(message)

    def think(self, text: str, place: str) -> None:
        """What the assistant thought before its next message."""
        self._reasoning.append(text)
        self._thought_at = place

    def call(self, call_id: str, kind: str, called: dict[str, Any], place: str) -> None:
        """A call of the assistant, in its message before, if there is one. kind: `function` or `custom`."""
        if not self.messages or self.messages[-1]["role"] != "assistant" or self._reasoning:
            self.say("assistant", "", place)
        calls = self.messages[-1].get("tool_calls", [])
        own = f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"
        self.names = {f"{own}.{kind}": place, own: place, **self.names}
        call = {"id": call_id, "type": kind, kind: called}
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _settle(self) -> None:
        """Reasoning that no message of the assistant follows has one of its own."""
        if self._reasoning:
            self.say("assistant", "", self._thought_at)

    def whole(self) -> list[dict[str, Any]]:
        """All messages."""
        self._settle()
        return self.messages

    def give(self, call_id: str, text: str, place: str) -> None:
        """What a call gave."""
        self._settle()
        self.names[f"messages[{len(self.messages)}]"] = place
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


def of_items(given: Any, instructions: str | None) -> Turns:
    """Messages of the input of a response."""
    turns = Turns()
    if instructions is not None:
        turns.say("system", instructions, "instructions")
    if isinstance(given, str):
        turns.say("user", given, "input")
        return turns
    for i, item in enumerate(given):
        place = f"input[{i}]"
        match item["type"]:
            case "message":
                turns.say(item["role"], text_of(item["content"]), place)
            case "function_call":
                called = {"name": item["name"], "arguments": item["arguments"]}
                turns.call(item["call_id"], "function", called, place)
            case "custom_tool_call":
                turns.call(item["call_id"], "custom", {"name": item["name"], "input": item["input"]}, place)
            case "function_call_output" | "custom_tool_call_output":
                turns.give(item["call_id"], text_of(item["output"]), place)
            case "reasoning":
                turns.think(text_of(item.get("content", "")), place)
    return turns


def chat_tools(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tools and their choice, as chat completions have them."""
    found: dict[str, Any] = {}
    if "tools" in values:
        found["tools"] = list(map(_chat_tool, values["tools"]))
    choice = values.get("tool_choice")
    if isinstance(choice, Mapping):
        chosen = choice.get("tools", [choice])
        named = [{"type": kind, kind: {"name": one["name"]}} for one in chosen for kind in [one["type"]]]
        if choice["type"] != "allowed_tools":
            choice = named[0]
        else:
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": named}}
    return found | ({} if choice is None else {"tool_choice": choice})


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as chat completions have it: under its kind."""
    kind, own = tool["type"], {name: value for name, value in tool.items() if name != "type"}
    if "format" in own and own["format"]["type"] == "grammar":
        grammar = {name: own["format"][name] for name in ("syntax", "definition")}
        own["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: own}


def tool_names(tools: Iterable[Any], schema: str = "parameters") -> dict[str, str]:
    """The places of tools that are functions themselves; schema: the name of that of their arguments."""
    names = {}
    for i, _ in enumerate(tools):
        names[f"tools[{i}].custom.format.grammar"] = f"tools[{i}].format"
        names[f"tools[{i}].custom"] = f"tools[{i}]"
        names[f"tools[{i}].function.parameters"] = f"tools[{i}].{schema}"
        names[f"tools[{i}].function"] = f"tools[{i}]"
    return names


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
        for chat, own in names.items():
            if error.param is not None and (error.param == chat or error.param.startswith((f"{chat}[", f"{chat}."))):
                error.param, error.message = own + error.param[len(chat) :], error.message.replace(chat, own)
                break
        raise
