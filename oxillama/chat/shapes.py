"""Shapes of answers: how a model writes calls of tools, and what stands around its reasoning and its content."""

from dataclasses import dataclass
from typing import Literal

from oxillama._util.checks import is_unicode
from oxillama.chat.patterns import Hole, Pattern
from oxillama.errors import ToolFormatError

__all__ = [
    "Braces",
    "CallFormat",
    "Frame",
    "JsonCall",
    "Named",
    "NestedTags",
    "PythonCall",
    "ReasoningFormat",
    "Tagged",
]

MAX_MARK = 256
KeyKind = Literal["name", "arguments", "id", "number", "constant"]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Marks of reasoning: what opens it and what ends it, such as ``<think>`` and ``</think>``.

    Reasoning stands at the beginning of an answer; a prompt may have opened it. Raises ToolFormatError for marks that
    are no text, or for an end of spaces alone.
    """

    begin: str
    end: str

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_MARK or not is_unicode(value):
                raise ToolFormatError(
                    f"{name} must be Unicode text of at most {MAX_MARK} characters, not {value!r:.60}"
                )
        if not self.end.strip():
            raise ToolFormatError("end must be what ends reasoning, with more than spaces")


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A JSON object with the name and the arguments.

    keys: (key, kind, JSON text of a constant) in the order of the template. name_is_key: ``{NAME: arguments}``.
    wrapper: a key whose value is the object, beside other keys, such as "function"; "" for none.
    spaced: the template breaks lines inside of the object.
    """

    keys: tuple[tuple[str, KeyKind, str], ...] = (("name", "name", ""), ("arguments", "arguments", ""))
    name_is_key: bool = False
    wrapper: str = ""
    spaced: bool = False

    def key(self, kind: KeyKind) -> str:
        return next((key for key, own, _ in self.keys if own == kind), "")


@dataclass(frozen=True, slots=True)
class Named:
    """The name, a mark, and the arguments as a JSON object. middle: what stands between name and arguments."""

    middle: Pattern = ()


@dataclass(frozen=True, slots=True)
class Tagged:
    """The name, and each argument between marks.

    head_end: what stands between the name and the first argument. begin, key_end: around an argument's key. lead,
    value_end: line breaks before the end of a value that aren't part of it, and the mark of the end. trail: line breaks
    behind `key_end` that aren't part of the value. text_type: what the `type` hole has for text; json_type: for
    numbers.
    """

    head_end: Pattern
    begin: str
    key_end: Pattern
    trail: str
    lead: str
    value_end: str
    text_type: str = ""
    json_type: str = ""


@dataclass(frozen=True, slots=True)
class PythonCall:
    """A call in Python's syntax, ``name(key='value')``. quote: that of its texts."""

    quote: str = "'"


@dataclass(frozen=True, slots=True)
class Braces:
    """The name, and the arguments in braces with bare keys and texts between quotes of their own. Gemma 4."""

    quote: str


@dataclass(frozen=True, slots=True)
class NestedTags:
    """The name, and values as tags that are named after their keys, nested as they are. MiniMax M3.

    head_end: what stands behind the name. mark: what stands before every tag.
    """

    head_end: str
    mark: str
    item: str = "item"


Shape = JsonCall | Named | Tagged | PythonCall | Braces | NestedTags


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Format of calls.

    shape: of one call. begin, end: around all calls. call_begin, call_end: around one; `call_begin` goes up to the name
    (of a JSON object: up to its brace). separator: between calls. later: what opens calls after text, if not `begin`.
    parallel: whether the template shows several calls in a row.
    """

    shape: Shape
    begin: Pattern = ()
    call_begin: Pattern = ()
    call_end: str = ""
    separator: str = ""
    end: str = ""
    later: Pattern | None = None
    parallel: bool = True

    @property
    def opening(self) -> Pattern:
        """Pattern before the first call."""
        return _joined(self.begin, self.call_begin)

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that open calls in the midst of other text; without one, calls are only at the beginning."""
        found = [self.opening if self.later is None else _joined(self.later, self.call_begin)]
        return tuple(mark for pattern in found if (mark := _literal_start(pattern)))


def _joined(*patterns: Pattern) -> Pattern:
    parts: list[str | Hole] = []
    for pattern in patterns:
        for part in pattern:
            if parts and isinstance(part, str) and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part)
    return tuple(parts)


def _literal_start(pattern: Pattern) -> str:
    return pattern[0].lstrip() if pattern and isinstance(pattern[0], str) else ""


@dataclass(frozen=True, slots=True)
class Frame:
    """Marks around reasoning, content and calls.

    reasoning: marks of the reasoning. content_begin, content_end: around the content. turn_end: what ends the turn.
    breaks: marks between the parts of an answer, which belong to none.
    """

    reasoning: ReasoningFormat | None = None
    content_begin: str = ""
    content_end: str = ""
    turn_end: str = ""
    breaks: tuple[str, ...] = ()
