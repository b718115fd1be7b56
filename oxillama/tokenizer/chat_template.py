"""Chat templates: a conversation to the text that a model was trained to continue."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oxillama.errors import ChatTemplateError

if TYPE_CHECKING:
    from jinja2 import Template

    from oxillama.tokenizer.sandbox import SandboxEnvironment

__all__ = ["ChatTemplate"]

_MAX_SOURCE = 1 << 18
_MAX_OUTPUT = 1 << 24
_MAX_SECONDS = 5.0


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
        self._template = _compile(source)

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
            messages: ``{"role": ..., "content": ...}`` each; content is a str, or a list of parts (dicts).
            add_generation_prompt: end with what opens the assistant's turn.
            tools: JSON descriptions of functions that the model may call.
            extra: further variables for the template (``enable_thinking=False``, ``documents=...``).

        Raises:
            ChatTemplateError: the arguments are not of that form, the template raises, or it exceeds its bounds.
        """
        _check_messages(messages)
        if tools is not None and not (_is_list(tools) and all(isinstance(tool, Mapping) for tool in tools)):
            raise ChatTemplateError(f"tools must be a list of dicts, not {_shown(tools)}")
        variables = {
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            **extra,
        }
        return self._run(variables)

    def _run(self, variables: dict[str, Any]) -> str:
        from oxillama.tokenizer.budget import Budget, budget

        spent = Budget(self._max_output, self._max_seconds)
        token = budget.set(spent)
        try:
            spent.size(variables)  # refuses values that contain themselves, and remembers the sizes of the others
            pieces: list[str] = []
            total = 0
            for piece in self._template.generate(variables):
                total += len(piece)
                spent.allow(total, "the output")
                pieces.append(piece)
            return "".join(pieces)
        except Exception as error:
            raise ChatTemplateError(f"the chat template failed: {_reason(error)}") from None
        finally:
            budget.reset(token)

    def __repr__(self) -> str:
        return f"<ChatTemplate of {len(self.source)} characters>"


def _compile(source: str) -> "Template":
    try:
        return _environment().from_string(source)
    except Exception as error:
        raise ChatTemplateError(f"the chat template does not compile: {_reason(error)}") from None


def _environment() -> "SandboxEnvironment":
    global _shared_environment
    if _shared_environment is None:
        from oxillama.tokenizer.sandbox import SandboxEnvironment

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


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"


def _check_messages(messages: object) -> None:
    if not _is_list(messages):
        raise ChatTemplateError(f"messages must be a list of dicts, not {_shown(messages)}")
    if not messages:
        raise ChatTemplateError("messages is empty: a conversation needs at least one message")
    for i, message in enumerate(messages):  # type: ignore[var-annotated, arg-type]
        if not isinstance(message, Mapping):
            raise ChatTemplateError(f"messages[{i}] must be a dict with 'role' and 'content', not {_shown(message)}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise ChatTemplateError(f"messages[{i}]['role'] must be a str, not {_shown(role)}")
        if content is None or isinstance(content, str):
            continue
        if not _is_list(content):
            raise ChatTemplateError(f"messages[{i}]['content'] must be a str or a list of parts, not {_shown(content)}")
        for j, part in enumerate(content):
            if not isinstance(part, Mapping):
                raise ChatTemplateError(f"messages[{i}]['content'][{j}] must be a dict, not {_shown(part)}")
