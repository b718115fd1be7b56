"""Formats of tool calls that a caller describes or names, for models whose templates don't show theirs."""

from dataclasses import dataclass
from typing import Literal

from oxillama._util.checks import check_bool, check_choice, is_unicode
from oxillama.chat.format import ChatFormat
from oxillama.chat.layout import Layout
from oxillama.chat.shapes import CallFormat, Frame, JsonCall, Named
from oxillama.errors import ToolFormatError

__all__ = ["FORMATS", "ToolFormat", "find_format"]

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

    @property
    def chat_format(self) -> ChatFormat:
        """The format of answers with such calls, and without reasoning."""
        plain = JsonCall((("name", "name", ""), (self.arguments, "arguments", "")))
        frame = Frame(breaks=(self.begin.strip(),)) if self.bare else Frame()
        if self.shape == "list":
            calls = CallFormat(plain, (f"{self.begin}[",), (), "", ", ", f"]{self.end}")
        elif self.shape == "named":
            calls = CallFormat(Named((self.between,)), (), (self.begin,), self.end.strip(), self.separator)
        else:
            begin = () if self.bare else (self.begin,)
            calls = CallFormat(plain, (), begin, "" if self.bare else self.end.strip(), self.separator)
        return ChatFormat(Layout(frame, calls), (self,))


# Sources of the formats: Nous Research's function calling prompts and Qwen 2.5's template; the templates of
# Mistral 7B v0.3, Nemo and Small 3.1, and since Small 3.2 with [ARGS]; Meta's "JSON based tool calling" for Llama 3.1.
FORMATS = {
    "hermes": ToolFormat("<tool_call>\n", "\n</tool_call>", separator="\n"),
    "mistral": ToolFormat("[TOOL_CALLS]", shape="list"),
    "mistral-args": ToolFormat("[TOOL_CALLS]", shape="named", between="[ARGS]"),
    "llama3": ToolFormat("<|python_tag|>", arguments="parameters", separator="; ", bare=True),
}
FORMATS["qwen"] = FORMATS["generic"] = FORMATS["hermes"]


def find_format(given: "str | ToolFormat | ChatFormat") -> ChatFormat:
    """The format that the caller names. Raises ToolFormatError for a name of none."""
    if isinstance(given, ChatFormat):
        return given
    if isinstance(given, str) and given in FORMATS:
        given = FORMATS[given]
    if not isinstance(given, ToolFormat):
        known = ", ".join(repr(name) for name in FORMATS)
        raise ToolFormatError(
            f"tool_format must be one of {known}, 'text', 'none', a ToolFormat or ChatFormat, not {given!r}"
        )
    return given.chat_format
