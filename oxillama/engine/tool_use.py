"""How an answer's calls of tools are found; see `oxillama.sampling.grammar.tools` for what they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.checks import check_int
from oxillama.errors import ConfigError
from oxillama.sampling.grammar.tools import (
    AnyToolCall,
    ToolCallDetector,
    ToolEvent,
    ToolFormat,
    find_format,
    read_tools,
)
from oxillama.tokenizer import Tokenizer

__all__ = ["ToolUse", "check_tool_use", "divided", "tool_use_of"]

CHOICES = ("auto", "none")
MAX_CALLS = 1 << 30


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Calls of tools are to be found in a text. `Engine.chat` makes one of its own options.

    format: how the model writes them, a `ToolFormat` or the name of one. first_id: number of the first call.
    """

    format: ToolFormat | str
    first_id: int = 0

    def __post_init__(self) -> None:
        if self.format is None:
            raise ConfigError("tool_use.format must be a ToolFormat or the name of one, not None")
        object.__setattr__(self, "format", find_format(self.format, None))
        check_int("tool_use.first_id", self.first_id, 0, MAX_CALLS)

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


def check_tool_use(value: Any) -> ToolUse | None:
    """Raises ConfigError for anything else."""
    if value is not None and not isinstance(value, ToolUse):
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


def tool_use_of(
    template: str | None, messages: Sequence[Mapping[str, Any]], tools: Any, choice: Any, format: Any
) -> ToolUse | None:
    """What `Engine.chat` does with its options of tools: None if calls are not looked for.

    Raises ConfigError for wrong options and descriptions, ToolFormatError if the template doesn't tell the format.
    """
    if not tools:
        for name, value in (("tool_choice", choice), ("tool_format", format)):
            if value is not None:
                raise ConfigError(f"{name} is given without tools: give tools=[...] too")
        return None
    if choice is not None and choice not in CHOICES:
        raise ConfigError(f"tool_choice must be one of {', '.join(CHOICES)}, not {choice!r}")
    if choice == "none" or format == "text":
        return None
    read_tools(tools)
    n_calls = sum(len(calls) for m in messages if isinstance(calls := m.get("tool_calls"), list | tuple))
    return ToolUse(find_format(format, template), n_calls)
