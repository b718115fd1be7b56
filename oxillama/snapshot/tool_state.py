"""State of the reading of answers: formats, tools and reasoning of a request, to JSON and from it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any, cast

from oxillama._util.checks import check_bool
from oxillama._util.json_fields import Fields
from oxillama.chat.format import ChatFormat
from oxillama.chat.shapes import ReasoningFormat
from oxillama.chat.tool_format import ToolFormat
from oxillama.core.tool_use import ToolUse
from oxillama.errors import OxiLlamaError, SnapshotDamagedError

__all__ = ["read_tool_use", "tools_state"]


def tools_state(use: ToolUse) -> dict[str, Any]:
    """A format is saved as the template that it was made of, or as its fields."""
    source = cast(ChatFormat, use.format).source
    form: dict[str, Any] = asdict(source[0]) if isinstance(source[0], ToolFormat) else {"template": list(source)}
    if isinstance(source[0], ToolFormat) and len(source) > 1:
        form["text"] = True
    reasoning = use.reasoning if isinstance(use.reasoning, str) else asdict(use.reasoning)
    return {
        "format": form,
        "first_id": use.first_id,
        "tools": None if use.tools is None else list(use.tools),
        "choice": use.choice,
        "parallel": use.parallel,
        "prompt": use.prompt,
        "reasoning": reasoning,
        "budget": use.reasoning_budget,
    }


def _read_format(given: Fields) -> ChatFormat | ToolFormat:
    if "template" in given:
        source = given.texts("template")
        found = ChatFormat.of_template(source[0], bos_token=source[1], eos_token=source[2])
        return found.without_calls if source[3:] == ["text"] else found
    fields = dict(given)
    plain = fields.pop("text", False)
    form = ToolFormat(**fields)
    return form.chat_format.without_calls if plain else form


def read_tool_use(given: Fields | None, label: str) -> ToolUse | None:
    """Raises SnapshotDamagedError for invalid values."""
    if given is None:
        return None
    try:
        form = _read_format(given.sub("format"))
        tools = None if given.get("tools") is None else [json.loads(tool) for tool in given.texts("tools")]
        old = ToolUse(form, given.integer("first_id"), tools, given.text("choice"))
        if "prompt" not in given:  # a file of an earlier version
            return old
        marks = given.get("reasoning")
        reasoning = ReasoningFormat(**marks) if isinstance(marks, dict) else given.text("reasoning")
        budget, parallel = given.get("budget"), given.get("parallel")
        return replace(
            old,
            tools=tools,
            parallel=check_bool("parallel", parallel),
            prompt=given.text("prompt"),
            reasoning=reasoning,
            reasoning_budget=budget,
        )
    except (OxiLlamaError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise SnapshotDamagedError(f"{label}: calls of tools: {error}") from None
