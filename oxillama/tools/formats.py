"""Formats of tool calls, and the format of a chat template."""

import re
from dataclasses import dataclass
from typing import Literal

from oxillama._util.checks import check_bool, check_choice, is_unicode
from oxillama.errors import ToolFormatError

__all__ = ["FORMATS", "ToolFormat", "find_format", "format_of_template"]

Shape = Literal["object", "list", "named"]
MAX_DELIMITER = 256


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Format of tool calls: JSON between delimiters.

    begin, end: delimiters of a call, or of a list of calls. Without an end, a call ends with its JSON.
    shape: "object" is ``{"name": ..., "arguments": {...}}``, "list" a list of these, "named" the name and then the
        arguments. Grammars enforce this form; lists and objects are parsed in every format.
    arguments: the key of the arguments, "arguments" or "parameters".
    between: for "named": the text between name and arguments.
    separator: the text between calls.
    bare: a call may also come without `begin`, at the start of an answer.

    Raises ToolFormatError for delimiters that can't be distinguished from the text between them.
    """

    begin: str
    end: str = ""
    shape: Shape = "object"
    arguments: str = "arguments"
    between: str = ""
    separator: str = ""
    bare: bool = False

    def __post_init__(self) -> None:
        for name in ("begin", "end", "between", "separator"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_DELIMITER:
                raise ToolFormatError(f"{name} must be a str of at most {MAX_DELIMITER} characters, not {value!r:.60}")
            if not is_unicode(value):
                raise ToolFormatError(f"{name} must be Unicode, which halves of surrogate pairs are not: {value!r:.60}")
        if not self.begin.strip():
            raise ToolFormatError("begin must be what opens a call, with more than spaces: without it, all is text")
        if self.end and (not self.end.strip() or self.end.strip()[0] in "{}[],"):
            raise ToolFormatError(f"end must be what closes a call, and no part of JSON, not {self.end!r}")
        check_choice("shape", self.shape, ("object", "list", "named"))
        check_choice("arguments", self.arguments, ("arguments", "parameters"))
        check_bool("bare", self.bare)


# Sources of the formats: Nous Research's function calling prompts and Qwen 2.5's template; the templates of
# Mistral 7B v0.3, Nemo and Small 3.1, and since Small 3.2 with [ARGS]; Meta's "JSON based tool calling" for Llama 3.1.
FORMATS = {
    "hermes": ToolFormat("<tool_call>\n", "\n</tool_call>", separator="\n"),
    "mistral": ToolFormat("[TOOL_CALLS]", shape="list"),
    "mistral-args": ToolFormat("[TOOL_CALLS]", shape="named", between="[ARGS]"),
    "llama3": ToolFormat("<|python_tag|>", arguments="parameters", separator="; ", bare=True),
}
FORMATS["qwen"] = FORMATS["hermes"]

# Calls written in XML between the same delimiters: Qwen 3 Coder, GLM 4.5, and others.
_XML = re.compile(r"<function=|<arg_key>|<parameter=|<invoke|<parameter name")


def format_of_template(template: str) -> str | None:
    """The name of the format of calls in a chat template; None for an unknown one."""
    if _XML.search(template):
        return None
    if "[TOOL_CALLS]" in template:
        return "mistral-args" if "[ARGS]" in template else "mistral"
    if "<tool_call>" in template and "arguments" in template:
        return "hermes"
    if (
        "ipython" in template
        and re.search(r'\{\\?"name\\?": ', template)
        and re.search(r'\\?"parameters\\?": ', template)
    ):
        return "llama3"
    return None


def find_format(given: "str | ToolFormat | None", template: str | None) -> ToolFormat:
    """The format that the caller names, or else the template's. Raises ToolFormatError if there is none."""
    if isinstance(given, ToolFormat):
        return given
    known = ", ".join(repr(name) for name in FORMATS)
    if given is None:
        given = None if template is None else format_of_template(template)
        if given is None:
            raise ToolFormatError(
                "the chat template doesn't tell in which format the model calls tools: give tool_format= one of "
                f"{known}, a ToolFormat, or 'text' to get calls as text"
            )
    if not isinstance(given, str) or given not in FORMATS:
        raise ToolFormatError(f"tool_format must be one of {known}, 'text', or a ToolFormat, not {given!r}")
    return FORMATS[given]
