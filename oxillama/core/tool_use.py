"""Tool use of a request: format, schemas and detection of tool calls."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from oxillama._util.checks import check_bool, check_choice, check_int
from oxillama.errors import ConfigError
from oxillama.grammar import Grammar
from oxillama.sampler_config import SchemaMode
from oxillama.tokenizer import Tokenizer
from oxillama.tools import AnyToolCall, ToolCallDetector, ToolEvent, ToolFormat, find_format, read_tools, tool_grammar

__all__ = [
    "ToolUse",
    "check_tool_use",
    "divided",
    "tool_use_of",
]

MAX_CALLS = 1 << 30


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Calls of tools are to be found in a text. `Engine.chat` makes one of its own options.

    format: how the model writes them, a `ToolFormat` or the name of one. first_id: number of the first call.
    tools: descriptions of functions; calls are held to their names and schemas. None holds to nothing.
    choice: "auto" leaves it to the model whether it says something or calls, and all calls come last; "required" are
        calls alone; the name of a tool is one call of it.

    Raises ConfigError for other values.
    """

    format: ToolFormat | str
    first_id: int = 0
    tools: Sequence[Mapping[str, Any]] | None = None
    choice: str = "auto"

    def __post_init__(self) -> None:
        if self.format is None:
            raise ConfigError("tool_use.format must be a ToolFormat or the name of one, not None")
        object.__setattr__(self, "format", find_format(self.format, None))
        check_int("tool_use.first_id", self.first_id, 0, MAX_CALLS)
        names = () if self.tools is None else tuple(read_tools(self.tools))
        check_choice("tool_use.choice", self.choice, ("auto", "required", *names) if names else ("auto",))
        if self.tools is not None:  # frozen, so that they can't be changed
            object.__setattr__(self, "tools", _frozen(self.tools))

    def grammar(self, tokenizer: Tokenizer, mode: SchemaMode = "generate") -> tuple[Grammar, tuple[str, ...]]:
        """What calls are held to, and the texts that put it in force. mode: as `JsonSchemaCompiler.compile` has it,
        for the arguments. Raises GrammarError."""

        def control_token(text: str) -> int | None:
            token = tokenizer.token_to_id(text)
            return token if token is not None and tokenizer.is_special(token) else None

        tools = read_tools([json.loads(tool) for tool in cast(tuple[str, ...], self.tools)])
        return tool_grammar(find_format(self.format, None), tools, self.choice, control_token, mode)

    @property
    def detector(self) -> ToolCallDetector:
        """A new one, for one text."""
        return ToolCallDetector(self.format, first_id=self.first_id)

    def delimiters(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Tokens of the format, also control tokens: they must be seen to be found."""
        form = find_format(self.format, None)
        texts = (form.begin, form.end, form.between, "[CALL_ID]", "[ARGS]")
        found = (tokenizer.token_to_id(text.strip()) for text in texts if text.strip())
        return frozenset(token for token in found if token is not None)


def check_tool_use(value: Any) -> ToolUse:
    """Raises ConfigError for anything else."""
    if not isinstance(value, ToolUse):
        raise ConfigError(f"tool_use must be a ToolUse or None, not {value!r:.60}")
    return value


def divided(events: list[ToolEvent]) -> list[tuple[str, list[AnyToolCall]]]:
    """Texts with the calls that come right after each."""
    found: list[tuple[str, list[AnyToolCall]]] = []
    for event in events:
        if isinstance(event, str):
            found.append((event, []))
        else:
            found = found or [("", [])]
            found[-1][1].append(event)
    return found


def _frozen(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    try:
        return tuple(json.dumps(tool, allow_nan=False) for tool in tools)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"tools must be JSON: {error}") from None


def tool_use_of(
    template: str | None, messages: Sequence[Mapping[str, Any]], tools: Any, choice: Any, format: Any, constrain: Any
) -> ToolUse | None:
    """What `Engine.chat` does with its options of tools: None if calls are not looked for.

    Raises ConfigError for wrong options and descriptions, ToolFormatError if the template doesn't tell the format.
    """
    if not tools:
        for name, value in (("tool_choice", choice), ("tool_format", format), ("constrain_tools", constrain)):
            if value is not None:
                raise ConfigError(f"{name} is given without tools: give tools=[...] too")
        return None
    if isinstance(choice, Mapping):  # {"type": "function", "function": {"name": ...}}
        function = choice.get("function")
        wanted = function.get("name") if isinstance(function, Mapping) else None
        if choice.get("type") != "function" or not isinstance(wanted, str):
            raise ConfigError(
                f"tool_choice must be {{'type': 'function', 'function': {{'name': ...}}}}, not {choice!r}"
            )
        choice = wanted
    names = tuple(read_tools(tools))
    check_choice("tool_choice", "auto" if choice is None else choice, ("auto", "required", "none", *names))
    held = check_bool("constrain_tools", True if constrain is None else constrain)
    if choice not in (None, "auto", "none") and (not held or format == "text"):
        raise ConfigError(f"tool_choice={choice!r} needs calls that are found and held to their schemas")
    if choice == "none" or format == "text":
        return None
    n_calls = sum(len(calls) for m in messages if isinstance(calls := m.get("tool_calls"), list | tuple))
    return ToolUse(find_format(format, template), n_calls, tools if held else None, choice or "auto")
