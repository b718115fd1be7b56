"""Tools: finding their calls in what a model writes, holding it to their schemas, and calling functions.

`formats` knows how models write calls, `detector` divides a text into what is said and what is to be called.
"""

from oxillama.sampling.grammar.tools.calls import AnyToolCall, BrokenToolCall, ToolCall, assistant_message
from oxillama.sampling.grammar.tools.detector import ToolCallDetector, ToolEvent
from oxillama.sampling.grammar.tools.formats import FORMATS, ToolFormat, find_format, format_of_template

__all__ = [
    "FORMATS",
    "AnyToolCall",
    "BrokenToolCall",
    "ToolCall",
    "ToolCallDetector",
    "ToolEvent",
    "ToolFormat",
    "assistant_message",
    "find_format",
    "format_of_template",
]
