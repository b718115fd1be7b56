"""Chat templates: a conversation to the text that a model was trained to continue."""

import datetime
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from oxillama._util.checks import check_bool, check_type
from oxillama._util.pickling import with_fields
from oxillama.chat.capabilities import Capabilities
from oxillama.chat.continuation import check_continuation, continued
from oxillama.chat.functions import described_tools
from oxillama.chat.messages import checked_messages
from oxillama.chat.presence import check_arguments, check_presence
from oxillama.chat.recast import recasts
from oxillama.chat.repairs import in_form
from oxillama.chat.variables import check_variables, effort_variable, needed_variables, thinking_switch
from oxillama.errors import ChatTemplateError, ConfigError

if TYPE_CHECKING:
    from jinja2 import Template

    from oxillama.chat.budget import Budget
    from oxillama.chat.sandbox import SandboxEnvironment

__all__ = ["ChatTemplate", "Prints", "check_tools", "probing"]

Make = Callable[[Sequence[dict[str, Any]]], str]  # the prompt of messages
_LOG = logging.getLogger("oxillama")
_PROBING: ContextVar[bool] = ContextVar("probing", default=False)
_MAX_SOURCE = 1 << 18
_MAX_OUTPUT = 1 << 24
_MAX_WORK = 5_000_000
_PROBE_SHARE = 16  # a rendering that only looks at the template may do so much less
_MAX_KNOWN = 64  # sets of variables without which a template prints nothing


@dataclass(slots=True)
class _Pool:
    """Units of work that are left to several renderings."""

    left: int


_POOL: ContextVar[_Pool | None] = ContextVar("pool", default=None)


@contextmanager
def probing(work: int) -> Iterator[None]:
    """A block in which templates are rendered to see what they write: what they leave out is no news.

    work: units of work of all renderings together.
    """
    token, pool = _PROBING.set(True), _POOL.set(_Pool(work))
    try:
        yield
    finally:
        _PROBING.reset(token)
        _POOL.reset(pool)


class Prints(NamedTuple):
    """Parts that a template prints: descriptions of tools; calls in messages of the assistant, and their results."""

    tools: bool
    calls: bool


class ChatTemplate:
    """A Jinja2 chat template, compiled in a sandbox.

    Templates come with models and may be hostile. One can't reach Python's internals or change its arguments, and is
    stopped when it writes more than ``max_output`` characters, builds a value larger than that, holds eight times as
    many bytes, or does more than ``max_work`` units of work. Work is counted, not timed, so that the same conversation
    is stopped at the same place wherever it is rendered; a unit takes about a microsecond.

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
        max_work: int = _MAX_WORK,
    ) -> None:
        if not isinstance(source, str):
            raise ChatTemplateError(f"a chat template must be a str, not {type(source).__name__}")
        if len(source) > _MAX_SOURCE:
            raise ChatTemplateError(f"the chat template has {len(source)} characters; the limit is {_MAX_SOURCE}")
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._max_output = max_output
        self._max_work = max_work
        self._compiled = _compile(source)

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("source", "bos_token", "eos_token")
        limits = {"max_output": self._max_output, "max_work": self._max_work}
        return with_fields, (type(self), {name: getattr(self, name) for name in names} | limits)

    def __copy__(self) -> "ChatTemplate":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "ChatTemplate":
        return self

    @property
    def variables(self) -> frozenset[str]:
        """Names that the template reads and doesn't always set itself, `messages` and `tools` among them."""
        return self._compiled.variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | str = False,
        reasoning_effort: str | None = None,
        now: datetime.datetime | None = None,
        **variables: Any,
    ) -> str:
        """The conversation as one text.

        Args:
            messages: ``{"role": ..., "content": ...}`` each, as OpenAI's clients send them: content is a str or a list
                of text parts, ``{"type": "text", "text": ...}``, and may be missing beside ``tool_calls``. They are
                brought into the form that the template prints, which is found by rendering short conversations: parts
                are joined with newlines, or a str becomes one part; arguments of calls become objects or JSON text; a
                developer's message becomes one of the system, and the system's the beginning of the next one of the
                user; ``reasoning_content``, ``reasoning`` or ``thinking`` stand under the names that it reads.
            tools: functions that the model may call, or JSON descriptions of them; an empty list is left out.
            add_generation_prompt: end with what opens the assistant's turn; by default where no message is continued.
            continue_final_message: end within the last message, which the assistant began: True, or the field to go on
                from, "content" or "reasoning_content".
            reasoning_effort: how much the model is to think, such as "low" or "high".
            now: the time that the template sees; by default the system's.
            variables: further variables of the template (``enable_thinking=False``, ``documents=...``).

        Raises:
            MessageError: a message is not of that form, has other parts than text, or the template leaves it out; it
                names the place, such as ``messages[2].content[0].type``.
            TemplateVariableError: the template doesn't read a variable.
            ChatTemplateError: tools are not of that form, the template raises, or it exceeds its bounds.
        """
        given = checked_messages(messages)
        field = check_continuation(continue_final_message, given)
        ends_open = field is None if add_generation_prompt is None else add_generation_prompt
        check_bool("add_generation_prompt", ends_open)
        if field is not None and ends_open:
            raise ConfigError("add_generation_prompt and continue_final_message are both given: give one of them")
        described: Sequence[Mapping[str, Any]] | None = described_tools(tools)
        check_tools(described)
        if now is not None:
            check_type("now", now, datetime.datetime)
        check_variables(variables, self.variables)
        if reasoning_effort is not None:
            variables |= effort_variable(reasoning_effort, self.variables)
        with self._spending(now) as spent:
            spent.give([variables, given, described])  # refuses values that contain themselves, and remembers sizes
            rendering = _Rendering(self, described or None, variables)
            return rendering.prompt(given, ends_open) if field is None else rendering.continued(given, field)

    def generation_prompt(
        self, messages: Sequence[Mapping[str, Any]], *, prompt: str | None = None, **options: Any
    ) -> str:
        """The end of a prompt, which the answer goes on from: what opens the assistant's turn, and what of the answer
        is there already.

        It may have opened reasoning, or closed it. prompt: what :meth:`render` gives for all that, if it is there
        already. options, errors: those of :meth:`render`; "" with ``add_generation_prompt=False``.
        """
        if prompt is None:
            prompt = self.render(messages, **options)
        asked = messages
        if options.get("continue_final_message"):
            asked = messages[:-1]
            options = {**options, "continue_final_message": False}
        before = self.render(asked, **{**options, "add_generation_prompt": False}) if asked else ""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, before, strict=False))
        return prompt[sum(1 for _ in same) :]

    def prints(self, variables: Mapping[str, Any] | None = None) -> Prints:
        """Finds which parts of a conversation with tools the template prints, given these variables if it needs them.

        Found by rendering short conversations, once for each template. One that prints no message, or exceeds its
        bounds, isn't known to leave out tools.
        """
        try:
            with self._spending():
                able = capabilities_of(self, variables or {})
                return Prints(able.tools or not able.plain, able.calls and able.prints("tool"))
        except ChatTemplateError:
            return Prints(tools=True, calls=True)

    def thinking(self, on: bool) -> dict[str, Any]:
        """The variable, with its value, that lets the model think or not: ``{"enable_thinking": False}`` for many.

        Found by rendering a question with each of the variables that templates have for it. Raises
        TemplateVariableError if there is none.
        """
        check_bool("on", on)
        question = [{"role": "user", "content": "question"}]
        with self._spending():
            return thinking_switch(self.variables, on, lambda made: self._probe(made, question))

    @contextmanager
    def _spending(self, now: datetime.datetime | None = None) -> Iterator["Budget"]:
        """A block in which the template may run. Raises ChatTemplateError for what the template raises there."""
        from oxillama.chat.budget import Budget, budget

        pool = _POOL.get()
        spent = Budget(self._max_output, self._max_work if pool is None else min(self._max_work, pool.left), now)
        token = budget.set(spent)
        try:
            yield spent
        except (ChatTemplateError, ConfigError):
            raise
        except Exception as error:
            raise ChatTemplateError(f"the chat template failed: {_reason(error)}") from None
        finally:
            budget.reset(token)
            if pool is not None:
                pool.left -= spent.work - max(spent.left, 0)

    def _output(self, variables: Mapping[str, Any]) -> str:
        from oxillama.chat.budget import budget
        from oxillama.chat.sandbox import Absent

        spent = budget.get()
        pieces: list[str] = []
        total = 0
        given = {"bos_token": self.bos_token, "eos_token": self.eos_token, "tools": Absent(name="tools")}
        given |= needed_variables(self.variables, variables, spent.now or datetime.datetime.now())
        given |= variables
        for piece in self._compiled.template.generate(given):
            total += len(piece)
            spent.allow(total, "the output")
            pieces.append(piece)
        return "".join(pieces)

    def _probe(
        self,
        extra: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        ends_open: bool = True,
        /,
    ) -> str:
        """The output for messages with these variables; "" where the template raises something."""
        from oxillama.chat.budget import Budget, budget

        given: dict[str, Any] = {"messages": list(messages), "add_generation_prompt": ends_open}
        token = budget.set(Budget(self._max_output, self._max_work // _PROBE_SHARE, budget.get().now))
        try:  # with a budget of its own: what was found is kept, and later renderings don't pay for it
            return _tried(lambda: self._output({**given, **({"tools": list(tools)} if tools else {}), **extra}))
        finally:
            budget.reset(token)

    def __repr__(self) -> str:
        return f"<ChatTemplate of {len(self.source)} characters>"


class _Rendering:
    """One conversation's way through a template: brought into its form, rendered, and looked for in the prompt."""

    def __init__(
        self, template: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, Any]
    ) -> None:
        self._template = template
        self._variables = {**variables, **({"tools": list(tools)} if tools else {})}
        self._wrong: set[str] = set()  # arguments of calls that are no JSON objects, of the last rendering
        self._able = capabilities_of(template, variables)
        if tools:
            self._warn_without("tools", "the model will not know of them")

    def _warn_without(self, what: Literal["tools", "calls"], so: str) -> None:
        """Says once that the template doesn't print something, or a server's log has it for every request."""
        warned = self._template._compiled.warned
        if what not in warned and not _PROBING.get() and not getattr(self._able, what):
            warned.add(what)
            _LOG.warning("the chat template doesn't print %s: %s", what, so)

    def prompt(self, messages: Sequence[dict[str, Any]], ends_open: bool) -> str:
        """The prompt of all messages. Raises MessageError for one that isn't in it."""
        return self._whole(messages, lambda said: self._render(said, ends_open))

    def continued(self, messages: Sequence[dict[str, Any]], field: str) -> str:
        """The prompt that goes on from a field of the last message."""
        if "continue_final_message" in self._template.variables:
            self._variables["continue_final_message"] = True
        *before, last = messages
        return self._whole(
            before, lambda said: continued([*said, last], field, self._render, lambda: self._able.reasoning_frame)
        )

    def _whole(self, messages: Sequence[dict[str, Any]], make: Make) -> str:
        """The prompt that `make` makes of messages, or of the first of their other forms that the template takes.

        Raises what the messages as they are raise, if it takes none.
        """
        from oxillama.chat.budget import LimitError

        try:
            return self._complete(messages, make)
        except LimitError:
            raise
        except Exception as error:
            if _PROBING.get() or not self._able.plain:  # what it refuses is what is looked for
                raise
            refused = error
        for form in recasts(messages):
            try:
                return self._complete(form, make)
            except LimitError:
                raise
            except Exception:
                continue
        raise refused

    def _complete(self, messages: Sequence[dict[str, Any]], make: Make) -> str:
        """The prompt of messages as they are. Raises MessageError for one that isn't in it."""
        output, wrong = make(messages), self._wrong
        if self._able.plain:  # else it prints no message at all
            check_presence(messages, output, self._able.prints, lambda others: _tried(lambda: make(others)))
            check_arguments(messages, wrong, output, lambda others: _tried(lambda: make(others)))
        return output

    def _render(self, messages: Sequence[dict[str, Any]], ends_open: bool) -> str:
        from oxillama.chat.budget import budget

        found, self._wrong = in_form(messages, self._able)
        if any("tool_calls" in message for message in found):
            self._warn_without("calls", "those of earlier answers are left out of the prompt")
        budget.get().give(found)
        return self._template._output({"messages": found, "add_generation_prompt": ends_open, **self._variables})


def capabilities_of(template: ChatTemplate, variables: Mapping[str, Any]) -> Capabilities:
    """Abilities of the template: what it prints; with these variables, if it prints nothing without them."""

    def known_of(extra: Mapping[str, Any]) -> Capabilities:
        known = template._compiled.known
        if len(known) >= _MAX_KNOWN:
            known.clear()
        found = known.setdefault(tuple(sorted(extra)), {})
        return Capabilities(found, partial(template._probe, extra))

    able = known_of({})
    return known_of(variables) if variables and not able.plain else able


def _tried(render: Callable[[], str]) -> str:
    """The output; "" where the template raises something, but for what exceeds its bounds."""
    from oxillama.chat.budget import LimitError

    try:
        return render()
    except LimitError:
        raise
    except Exception:
        return ""


def check_tools(tools: object) -> None:
    """Raises ChatTemplateError for anything else than a list of dicts, or None."""
    listed = isinstance(tools, Sequence) and not isinstance(tools, str | bytes)
    if tools is not None and not (listed and all(isinstance(tool, Mapping) for tool in cast("Sequence[Any]", tools))):
        raise ChatTemplateError(f"tools must be a list of dicts, not {type(tools).__name__} {tools!r:.60}")


@dataclass(slots=True)
class _Compiled:
    """A template's code, the names that it reads, and what was found of its capabilities.

    warned: what the log has it of that the template doesn't print: "tools", "calls".
    """

    template: "Template"
    variables: frozenset[str]
    known: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)


@lru_cache(maxsize=16)
def _compile(source: str) -> _Compiled:
    environment = _environment()
    try:
        return _Compiled(environment.from_string(source), environment.variables(source))
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
