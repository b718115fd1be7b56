"""Display of tools: which prompts describe them in messages, as the chat template shows none, and with which calls."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from oxillama.chat.dispatch import read_tools
from oxillama.chat.format import ChatFormat
from oxillama.chat.generic_tools import ToolDisplay
from oxillama.chat.template import ChatTemplate, check_tools
from oxillama.chat.tool_format import find_format
from oxillama.errors import ConfigError, ToolFormatError

__all__ = ["answer_format", "note_of", "shown_by"]

T = TypeVar("T")
Messages = Sequence[Mapping[str, Any]]
_LOG = logging.getLogger("oxillama")
_AS_IT_IS = ("text", "none")  # the values of tool_format with which the template alone shows tools
_DESCRIBED = "the chat template shows no tools: they are described in a system message"
_UNSEEN = "the chat template shows no tools, and the tool format text describes none: the model doesn't see them"
_IN_JSON = f"{_DESCRIBED}, and calls are JSON"


def answer_format(template: ChatTemplate, options: Mapping[str, Any]) -> ChatFormat:
    """The format of answers to a prompt of a template: its own, or with JSON calls if it shows neither tools nor calls.

    options: those of `PromptOptions`. Raises ToolFormatError if "generic" is asked for, and can't be had.
    """
    own, given = ChatFormat.of_template(template), options.get("tool_format")
    if given == "generic" and own.harmony:
        raise ToolFormatError("tool_format must not be 'generic' for a model that answers in channels: leave it out")
    if given == "generic" or (options.get("tools") and given is None and _lacks_tools(template, own, options)):
        return own.with_generic_calls
    return own


def _lacks_tools(template: ChatTemplate, own: ChatFormat, options: Mapping[str, Any]) -> bool:
    return own.calls is None and not own.harmony and not _prints_tools(template, options)


def _prints_tools(template: ChatTemplate, options: Mapping[str, Any]) -> bool:
    """Whether a template shows tools, as it does or by a variable of its own that has them."""
    variables = options.get("template_kwargs") or {}
    if template.prints(variables).tools:
        return True
    try:
        said = json.dumps(list(variables.values()), default=str)
        names = [json.dumps(name) for name in read_tools(options.get("tools") or [])]
    except (ConfigError, ValueError, RecursionError):
        return False
    return bool(names) and all(name in said for name in names)


def display_of(template: ChatTemplate, messages: Messages, options: Mapping[str, Any]) -> ToolDisplay | None:
    """Display of tools, calls and results in a prompt; None if the template does, or there are none."""
    tools, given = options.get("tools"), options.get("tool_format")
    past = any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)
    if not (tools or past) or (isinstance(given, str) and given in _AS_IT_IS):
        return None
    if given != "generic" and _prints_tools(template, options):
        return None
    own = ChatFormat.of_template(template)
    if given is None or given == "generic":
        form = answer_format(template, options)
        form = form if form.calls or form.harmony else form.with_generic_calls  # of past calls
    else:
        form = find_format(given)
    native = form == own and template.prints(options.get("template_kwargs")).calls
    return None if form.calls is None or (native and not tools) else ToolDisplay(form.layout, native)


def shown_by(
    template: ChatTemplate,
    messages: Sequence[dict[str, Any]],
    options: Mapping[str, Any],
    render: Callable[[Sequence[dict[str, Any]], Any], T],
) -> T:
    """render(messages, tools) of a template, with tools in the messages where it shows none.

    messages: of `checked_messages`. options: those of `PromptOptions`. Raises what `render` raises, and
    ChatTemplateError for tools of another form.
    """
    tools = options.get("tools")
    display = display_of(template, messages, options)
    if display is None:
        return render(messages, tools)
    check_tools(tools)
    return display.rendered(messages, tools, lambda said: render(said, None))


def note_of(template: ChatTemplate, options: Mapping[str, Any]) -> str:
    """Sentence for a caller on how tools are shown to the model; "" if nothing, or if the caller asked for it. With the
    format "text" it is said where the model doesn't see them.

    The log has it once for each template.
    """
    given = options.get("tool_format")
    if not options.get("tools") or given not in (None, "text") or _prints_tools(template, options):
        return ""
    form = answer_format(template, options)
    if given is None and form.calls is None:
        return ""
    own = _DESCRIBED if form == ChatFormat.of_template(template) else _IN_JSON
    note = own if given is None else _UNSEEN
    _log_once(note, template.source)
    return note


@lru_cache(maxsize=64)
def _log_once(note: str, source: str) -> None:
    _LOG.info("%s", note)
