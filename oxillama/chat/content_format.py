"""Content formats of chat templates: whether one prints a message's content as a string, as a list of parts, or both.

The format is found by rendering short conversations and looking for their texts in the output, as llama.cpp and
transformers' users do by hand: what a template tests by name says little about what it prints.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ContentFormat", "conversation", "formats_of"]

# Texts of the probes. The third one stands where no template looks: if it is printed, a whole part was printed.
_FIRST, _SECOND, _UNSEEN = "oxprobeone", "oxprobetwo", "oxprobeunseen"
_PARTS = [{"type": "text", "text": text, "oxillama_probe": _UNSEEN} for text in (_FIRST, _SECOND)]
_CALL = {"id": "callprobe", "type": "function", "function": {"name": "probe", "arguments": {}}}

Render = Callable[[list[dict[str, Any]]], str]


@dataclass(frozen=True, slots=True)
class ContentFormat:
    """Forms of content that a template prints in messages of one role."""

    strings: bool
    parts: bool


def formats_of(render: Render, role: str) -> ContentFormat:
    """The formats for messages of a role.

    render: the template's output for messages; "" where it raises.
    """
    strings = _FIRST in render(conversation(role, _FIRST))
    output = render(conversation(role, _PARTS))
    parts = 0 <= output.find(_FIRST) < output.find(_SECOND) and _UNSEEN not in output
    return ContentFormat(strings, parts)


def conversation(role: str, content: str | Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """A conversation that most templates accept, with this content in a message of this role."""
    message = {"role": role, "content": content}
    question = {"role": "user", "content": "question"}
    match role:
        case "user":
            return [message]
        case "assistant":
            return [question, message, question]
        case "tool":
            asked = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
            return [question, asked, message | {"tool_call_id": "callprobe", "name": "probe"}]
        case _:
            return [message, question]
