"""Tools for templates that show none: described in a system message, with calls and results as text.

The model is told what there is and how a call is written, in any format that calls can be written in. In messages of
the history a call is the text that the model would have written, and what it returned is a message of the user.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from oxillama.chat.call_writer import WrittenCall, write_calls
from oxillama.chat.layout import Layout
from oxillama.chat.messages import as_part, texts_of
from oxillama.errors import ChatTemplateError, MessageError

__all__ = ["ToolDisplay"]

T = TypeVar("T")
Message = dict[str, Any]
Tools = Sequence[Mapping[str, Any]]
_SYSTEM = ("system", "developer")
_BETWEEN = "\n\n"
_PLACE = re.compile(r"messages\[(\d+)\]")
_EXAMPLE = WrittenCall("FUNCTION_NAME", {"PARAMETER": "VALUE"})
_TEXT = """\
# Tools

You may call one or more functions to answer the user. You are provided with their descriptions, with the JSON Schema \
of their parameters, within <tools></tools> tags:
<tools>
{tools}
</tools>

For each function call, write the function's name and its arguments in this form, and nothing else:
{example}

What a function returns comes in the next message, within <tool_response></tool_response> tags."""


@dataclass(frozen=True)
class ToolDisplay:
    """Description of tools for a model whose template shows none.

    layout: how the model is told to write calls. native: the template prints calls and results of the history itself,
    in this layout.
    """

    layout: Layout
    native: bool = False

    def rendered(self, messages: Sequence[Message], tools: Tools | None, render: Callable[[list[Message]], T]) -> T:
        """render(messages), with what they lack of the tools.

        messages: of `checked_messages`. Raises what `render` raises, with the places of these messages.
        """
        shown = list(enumerate(messages)) if self.native else self._with_history(messages)
        if tools:
            shown = self._with_tools(shown, tools)
        try:
            return render([message for _, message in shown])
        except MessageError as error:
            text = str(error)
            place = _PLACE.match(text)
            number = int(place.group(1)) if place else len(shown)
            if place is None or number >= len(shown):
                raise
            raise MessageError(f"messages[{shown[number][0]}]{text[place.end() :]}") from None

    def _with_tools(self, shown: list[tuple[int, Message]], tools: Tools) -> list[tuple[int, Message]]:
        """Messages with the description of the tools in the first one, if it is the system's, or before it."""
        try:
            listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"tools must be JSON: {error}") from None
        text = _TEXT.format(tools=listed, example=write_calls(self.layout, [_EXAMPLE]).strip())
        at, first = shown[0]
        if first["role"] in _SYSTEM:
            return [(at, first | {"content": _joined(first["content"], text)}), *shown[1:]]
        return [(at, {"role": "system", "content": text}), *shown]

    def _with_history(self, messages: Sequence[Message]) -> list[tuple[int, Message]]:
        """Messages with calls and results as text, each with the place of the first one that it has."""
        found: list[tuple[int, Message]] = []
        returned = False  # whether the last one is of results
        for at, message in enumerate(messages):
            is_result = message["role"] == "tool"
            if message.get("tool_calls"):
                message = self._with_text(message)
            elif is_result:
                text = "\n".join(texts_of(message["content"]))
                message = {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
            if returned and message["role"] == "user":  # templates may want the roles in turn
                first, last = found[-1]
                between = "\n" if is_result else _BETWEEN
                message = last | message | {"content": _joined(last["content"], message["content"], between)}
                found[-1] = first, message
            else:
                found.append((at, message))
            returned = is_result
        return found

    def _with_text(self, message: Message) -> Message:
        """A message whose calls are text behind its content."""
        functions = [(call.get("function", call), call.get("id")) for call in message["tool_calls"]]
        calls = [WrittenCall(own["name"], own.get("arguments") or {}, id or "") for own, id in functions]
        said = message["content"]
        has_text = any(text.strip() for text in texts_of(said))
        text = write_calls(self.layout, calls, behind_text=has_text)
        content = _joined(said, text, "" if texts_of(said)[-1][-1:].isspace() else "\n") if has_text else text
        kept = {name: value for name, value in message.items() if name != "tool_calls"}
        return kept | {"content": content}


def _joined(content: Any, text: Any, between: str = _BETWEEN) -> Any:
    """Two contents as one, of parts if one has parts."""
    if isinstance(content, str) and isinstance(text, str):
        return content + between + text
    first, second = (as_part(one) if isinstance(one, str) else list(one) for one in (content, text))
    return [*first, *second]
