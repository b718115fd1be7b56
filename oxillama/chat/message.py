"""Answers as messages: what a parser of a model's text gives, whole and piece by piece."""

import json
from dataclasses import dataclass, field
from typing import Any

from oxillama._util.json_values import json_value
from oxillama.chat.calls import AnyToolCall, BrokenToolCall, ToolCall, assistant_message

__all__ = ["ChatDelta", "ChatMessage", "ToolCallDelta", "openai_call"]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a call that is being written.

    index: number of the call in the answer. id, name: with the first piece of a call; None after that. arguments: more
    of the arguments' JSON text; "" with the first.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The piece in OpenAI's form."""
        if self.name is None:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """More of an answer: content, reasoning, a piece of a call, or a call that is complete."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None
    call: AnyToolCall | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A whole answer.

    reasoning, content: texts. tool_calls: those that could be parsed, and with their text those that could not.
    deltas: what `push` had not given yet when the text ended.
    """

    reasoning: str
    content: str
    tool_calls: list[AnyToolCall]
    deltas: list[ChatDelta] = field(default_factory=list)

    def to_message(self) -> dict[str, Any]:
        """The answer as a message for the next turn, in the form of chat templates: calls that couldn't be parsed stay
        in the content."""
        message = assistant_message(self.content, self.tool_calls)
        return {**message, "reasoning_content": self.reasoning} if self.reasoning else message

    def to_openai(self) -> dict[str, Any]:
        """The answer as OpenAI's clients get it, with `reasoning_content`, and arguments as JSON text.

        Of a call that the answer's end cut off, the arguments are as far as they were written, as the pieces of a
        stream are; the text of one that can't be read stays in the content.
        """
        shown = [call for call in self.tool_calls if isinstance(call, ToolCall) or (call.begun and not call.complete)]
        broken = [call for call in self.tool_calls if call not in shown]
        content = assistant_message(self.content, broken)["content"]
        calls = [openai_call(call) for call in shown]
        found: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        return {**found, "tool_calls": calls} if calls else found


def openai_call(call: AnyToolCall) -> dict[str, Any]:
    """A call in OpenAI's form; of one that was cut off, what there is of it."""
    if isinstance(call, BrokenToolCall):
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    arguments = json.dumps(json_value(call.arguments), ensure_ascii=False, allow_nan=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
