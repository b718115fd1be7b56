"""Conversations of other dialects, as messages of chat completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from oxillama.server.errors import ApiError

__all__ = ["chat_tools", "of_items", "renamed", "text_of"]

T = TypeVar("T")
PART_SEPARATOR = "\n"


def text_of(content: Any) -> str:
    """The text of a content that is a text or has parts."""
    return content if isinstance(content, str) else PART_SEPARATOR.join(part["text"] for part in content)


class Turns:
    """Messages that grow: calls and reasoning go to the assistant's message that they belong to."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning: list[str] = []

    def say(self, role: str, text: str) -> None:
        """A message."""
        if role != "assistant":
            self._settle()
        message: dict[str, Any] = {"role": role, "content": text}
        if role == "assistant" and self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
            self._reasoning = []
        self.messages.append(message)

    def think(self, text: str) -> None:
        """What the assistant thought before its next message."""
        self._reasoning.append(text)

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        """A call of the assistant, in its message before, if there is one."""
        if not self.messages or self.messages[-1]["role"] != "assistant" or self._reasoning:
            self.say("assistant", "")
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _settle(self) -> None:
        """Reasoning that no message of the assistant follows has one of its own."""
        if self._reasoning:
            self.say("assistant", "")

    def whole(self) -> list[dict[str, Any]]:
        """All messages."""
        self._settle()
        return self.messages

    def give(self, call_id: str, text: str) -> None:
        """What a call gave."""
        self._settle()
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


def of_items(given: Any, instructions: str | None) -> list[dict[str, Any]]:
    """Messages of the input of a response."""
    turns = Turns()
    if instructions is not None:
        turns.say("system", instructions)
    items = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
    for item in items:
        match item["type"]:
            case "message":
                turns.say(item["role"], text_of(item["content"]))
            case "function_call":
                turns.call(item["call_id"], item["name"], item["arguments"])
            case "function_call_output":
                turns.give(item["call_id"], text_of(item["output"]))
            case "reasoning":
                turns.think(text_of(item.get("content", "")))
    return turns.whole()


def chat_tools(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tools and their choice, as chat completions have them."""
    found: dict[str, Any] = {}
    if "tools" in values:
        found["tools"] = [
            {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}} for tool in values["tools"]
        ]
    choice = values.get("tool_choice")
    if isinstance(choice, Mapping):
        named = [{"type": "function", "function": {"name": one["name"]}} for one in choice.get("tools", [choice])]
        if choice["type"] == "function":
            choice = named[0]
        else:
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": named}}
    return found | ({} if choice is None else {"tool_choice": choice})


def renamed(make: Callable[[], T], names: Mapping[str, str]) -> T:
    """make(), whose errors name the fields that the request has for those of chat completions."""
    try:
        return make()
    except ApiError as error:
        for chat, own in names.items():
            if error.param is not None and (error.param == chat or error.param.startswith((f"{chat}[", f"{chat}."))):
                error.param, error.message = own + error.param[len(chat) :], error.message.replace(chat, own)
                break
        if names and error.param is not None:
            error.param, error.message = (s.replace("].function.", "].") for s in (error.param, error.message))
        raise
