"""Chat templates: a conversation to the text that a model was trained to continue."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from oxillama._util.pickling import with_fields
from oxillama.chat.content_format import ContentFormat, content_format
from oxillama.chat.messages import as_part, checked_messages, joined
from oxillama.errors import ChatTemplateError

if TYPE_CHECKING:
    from jinja2 import Template

    from oxillama.chat.budget import Budget
    from oxillama.chat.sandbox import SandboxEnvironment

__all__ = ["ChatTemplate"]

_MAX_SOURCE = 1 << 18
_MAX_OUTPUT = 1 << 24
_MAX_SECONDS = 5.0
_MAX_FORMATS = 64  # roles; conversations have five


class ChatTemplate:
    """A Jinja2 chat template, compiled in a sandbox.

    Templates come with models and may be hostile. One can't reach Python's internals or change its arguments, and is
    stopped when it writes more than ``max_output`` characters, builds a value larger than that, or runs longer than
    ``max_seconds``. The time is looked at between operations on values of at most ``max_output`` characters, so it
    may be exceeded by one such operation.

    Args:
        source: the template.
        bos_token, eos_token: texts that the template sees under these names.

    Raises:
        ChatTemplateError: the template does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        max_output: int = _MAX_OUTPUT,
        max_seconds: float = _MAX_SECONDS,
    ) -> None:
        if not isinstance(source, str):
            raise ChatTemplateError(f"a chat template must be a str, not {type(source).__name__}")
        if len(source) > _MAX_SOURCE:
            raise ChatTemplateError(f"the chat template has {len(source)} characters; the limit is {_MAX_SOURCE}")
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._max_output = max_output
        self._max_seconds = max_seconds
        self._compiled = _compile(source)

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("source", "bos_token", "eos_token")
        limits = {"max_output": self._max_output, "max_seconds": self._max_seconds}
        return with_fields, (type(self), {name: getattr(self, name) for name in names} | limits)

    def __copy__(self) -> "ChatTemplate":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "ChatTemplate":
        return self

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The conversation as one text.

        Args:
            messages: ``{"role": ..., "content": ...}`` each, as OpenAI's clients send them: content is a str or a list
                of text parts, ``{"type": "text", "text": ...}``, and may be missing beside ``tool_calls``. Parts are
                joined with newlines where the template prints strings, and a str becomes one part where it prints
                only parts.
            add_generation_prompt: end with what opens the assistant's turn.
            tools: JSON descriptions of functions that the model may call.
            extra: further variables for the template (``enable_thinking=False``, ``documents=...``).

        Raises:
            MessageError: a message is not of that form, or has other parts than text; it names the place, such as
                ``messages[2].content[0].type``.
            ChatTemplateError: tools are not of that form, the template raises, or it exceeds its bounds.
        """
        given = checked_messages(messages)
        if tools is not None and not (_is_list(tools) and all(isinstance(tool, Mapping) for tool in tools)):
            raise ChatTemplateError(f"tools must be a list of dicts, not {type(tools).__name__} {tools!r:.60}")
        variables = {"tools": None if tools is None else list(tools), "add_generation_prompt": add_generation_prompt}
        with self._spending() as spent:
            variables["messages"] = [self._in_format(message) for message in given]
            variables |= extra
            spent.size(variables)  # refuses values that contain themselves, and remembers the sizes of the others
            return self._output(variables)

    @contextmanager
    def _spending(self) -> Iterator["Budget"]:
        """A block in which the template may run. Raises ChatTemplateError for what the template raises there."""
        from oxillama.chat.budget import Budget, budget

        token = budget.set(Budget(self._max_output, self._max_seconds))
        try:
            yield budget.get()
        except Exception as error:
            raise ChatTemplateError(f"the chat template failed: {_reason(error)}") from None
        finally:
            budget.reset(token)

    def _output(self, variables: Mapping[str, Any]) -> str:
        from oxillama.chat.budget import budget

        spent = budget.get()
        pieces: list[str] = []
        total = 0
        for piece in self._compiled.template.generate(
            {"bos_token": self.bos_token, "eos_token": self.eos_token, **variables}
        ):
            total += len(piece)
            spent.allow(total, "the output")
            pieces.append(piece)
        return "".join(pieces)

    def _in_format(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message with its content as the template prints it: a string, or a list of parts."""
        role, content, formats = message["role"], message["content"], self._compiled.formats
        form = formats.get(role)
        if form is None:
            if len(formats) >= _MAX_FORMATS:
                formats.clear()
            form = formats[role] = content_format(self._probe, role)
        if isinstance(content, str):
            return message if form.strings else message | {"content": as_part(content)}
        return message if form.parts else message | {"content": joined(content)}

    def _probe(self, messages: list[dict[str, Any]]) -> str:
        """The output for messages; "" where the template raises something."""
        from oxillama.chat.budget import LimitError

        try:
            return self._output({"messages": messages, "tools": None, "add_generation_prompt": True})
        except LimitError:
            raise
        except Exception:
            return ""

    def __repr__(self) -> str:
        return f"<ChatTemplate of {len(self.source)} characters>"


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A template's code, and the content formats that were found for roles of messages."""

    template: "Template"
    formats: dict[str, ContentFormat] = field(default_factory=dict)


@lru_cache(maxsize=16)
def _compile(source: str) -> _Compiled:
    try:
        return _Compiled(_environment().from_string(source))
    except Exception as error:
        raise ChatTemplateError(f"the chat template does not compile: {_reason(error)}") from None


def _environment() -> "SandboxEnvironment":
    global _shared_environment
    if _shared_environment is None:
        from oxillama.chat.sandbox import SandboxEnvironment

        _shared_environment = SandboxEnvironment()
    return _shared_environment


_shared_environment: "SandboxEnvironment | None" = None


def _reason(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    text = str(error) or type(error).__name__
    if isinstance(error, (RecursionError, MemoryError)):
        text = "it nests or recurses too deeply, or needs too much memory"
    return text[:500] + (f" (line {line})" if line else "")


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
