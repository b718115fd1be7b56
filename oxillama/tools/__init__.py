"""Tools: detection of tool calls in a model's text, and calls of functions with arguments that fit their schemas.

`formats` has the models' formats of calls, `detector` divides a text into plain text and calls, `rules` makes grammars
of calls, `arguments` validates arguments, `dispatch` calls functions.
"""

from oxillama.chat.calls import AnyToolCall, BrokenToolCall, ToolCall, assistant_message
from oxillama.chat.dispatch import ToolDispatcher, ToolFunctions, ToolResult, read_tools
from oxillama.tools.detector import ToolCallDetector, ToolEvent
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
