"""Tools: finding their calls in what a model writes, and calling functions with arguments that fit their schemas.

`formats` knows how models write calls, `detector` divides a text into what is said and what is to be called,
`rules` holds a model to calls of tools, `arguments` says what is wrong with arguments, `dispatch` calls functions.
"""

from oxillama.tools.calls import AnyToolCall, BrokenToolCall, ToolCall, assistant_message
from oxillama.tools.detector import ToolCallDetector, ToolEvent
from oxillama.tools.dispatch import ToolDispatcher, ToolFunctions, ToolResult, read_tools
from oxillama.tools.formats import FORMATS, ToolFormat, find_format, format_of_template
from oxillama.tools.rules import tool_grammar

__all__ = [
    "FORMATS",
    "AnyToolCall",
    "BrokenToolCall",
    "ToolCall",
    "ToolCallDetector",
    "ToolDispatcher",
    "ToolEvent",
    "ToolFormat",
    "ToolFunctions",
    "ToolResult",
    "assistant_message",
    "find_format",
    "format_of_template",
    "read_tools",
    "tool_grammar",
]
