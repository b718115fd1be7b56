"""Dispatch of tool calls to functions, with validated arguments."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from oxillama.chat.arguments import Schema, faults
from oxillama.chat.calls import AnyToolCall, BrokenToolCall, ToolCall
from oxillama.chat.functions import described_function, described_tools
from oxillama.chat.schema_check import check_schema
from oxillama.errors import ConfigError, ToolArgumentsError, ToolCallError, ToolError, ToolFailedError, UnknownToolError

__all__ = ["ToolDispatcher", "ToolFunctions", "ToolResult", "read_tools"]

Tools = Sequence[Mapping[str, Any] | Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call. content: the text for the model, also of an error."""

    call: AnyToolCall
    content: str
    error: ToolError | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The result as a message for the next turn."""
        name = {"name": self.call.name} if isinstance(self.call, ToolCall) else {}
        return {"role": "tool", "tool_call_id": self.call.id, **name, "content": self.content}


@runtime_checkable
class ToolDispatcher(Protocol):
    """Protocol of objects that answer calls. Faults of the model and of a tool are results with an error."""

    def dispatch(self, call: AnyToolCall) -> ToolResult: ...


class ToolFunctions:
    """A `ToolDispatcher` of Python functions: called by name, with arguments that fit the tool's schema."""

    def __init__(self, tools: Tools, functions: Mapping[str, Callable[..., Any]] | None = None) -> None:
        """tools: functions, or descriptions, as for `Engine.chat`. functions: those of descriptions, by their names.

        The content is a function's return value: a str as it is, any other value as JSON. A function among the tools
        gets what its annotations say: dataclasses, members of enums, sets and tuples. Raises ConfigError for a tool
        without a function or the reverse, and for a schema with keywords that can't be checked.
        """
        described = described_tools(tools)
        self._schemas = read_tools(described)
        given = {} if functions is None else functions
        if not isinstance(given, Mapping) or not all(map(callable, given.values())):
            raise ConfigError("functions must map names of tools to functions")
        own = [described_function(tool) for tool in tools if callable(tool)]
        self._read = {one.function.__name__: one.read for one in own}
        self._functions = {**given, **{one.function.__name__: one.function for one in own}}
        for name in self._read.keys() & given.keys():
            raise ConfigError(f"the tool {name!r} is given in tools and in functions: give it once")
        for name in self._schemas.keys() ^ self._functions.keys():
            missing = "functions" if name in self._schemas else "tools"
            raise ConfigError(f"the tool {name!r} is missing in {missing}")
        for name, schema in self._schemas.items():
            check_schema(schema, f"the parameters of the tool {name!r}")

    def dispatch(self, call: AnyToolCall) -> ToolResult:
        """Calls a function. Any error becomes a `ToolResult` with that error."""
        try:
            return ToolResult(call, self._content(call))
        except ToolError as error:
            return ToolResult(call, f"error: {error}", error)

    def dispatch_all(self, calls: Iterable[AnyToolCall]) -> list[ToolResult]:
        """Results of the calls, one after another, in order."""
        return [self.dispatch(call) for call in calls]

    def _content(self, call: AnyToolCall) -> str:
        if isinstance(call, BrokenToolCall):
            raise ToolCallError(f"the call can't be read: {call.error}")
        if call.name not in self._functions:
            raise UnknownToolError(f"there is no tool {call.name!r}; there are {', '.join(self._functions)}")
        wrong = next(faults(self._schemas[call.name], call.arguments), None)
        if wrong is not None:
            raise ToolArgumentsError(f"{call.name}: {wrong}")
        try:
            read = self._read.get(call.name)
            found = self._functions[call.name](**(read(call.arguments) if read else call.arguments))
            return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, allow_nan=False)
        except Exception as error:
            raise ToolFailedError(f"{call.name} failed: {type(error).__name__}: {error}") from error


def read_tools(tools: Any) -> dict[str, Schema]:
    """The schema of each tool's parameters by its name. Raises ConfigError for descriptions of another form."""
    tools = described_tools(tools)
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise ConfigError(f"tools must be a list of descriptions of functions, not {type(tools).__name__}")
    found: dict[str, Schema] = {}
    for i, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"tools[{i}] must be {{'type': 'function', 'function': {{'name': ..., 'parameters': ...}}}}, "
                f"not {tool!r:.100}"
            )
        if name in found:
            raise ConfigError(f"tools[{i}] has the name {name!r} of an earlier tool")
        schema = function.get("parameters", {})
        if not isinstance(schema, Mapping | bool):
            raise ConfigError(f"tools[{i}] must have a schema as its parameters, not {schema!r:.60}")
        found[name] = schema
    return found
