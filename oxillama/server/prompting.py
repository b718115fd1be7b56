"""Conversations of requests: messages, tools and template options as `Engine.chat` takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from oxillama.chat import ChatTemplate
from oxillama.chat.format import ChatFormat
from oxillama.chat.shapes import ReasoningFormat
from oxillama.chat.tool_display import note_of
from oxillama.chat.variables import EFFORT_VARIABLES
from oxillama.core.chat import chat_ids, template_for
from oxillama.core.options import PromptOptions
from oxillama.errors import ChatTemplateError, TemplateVariableError
from oxillama.server.custom import FaultOf, as_functions, plain_messages
from oxillama.server.errors import bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.fields import CHAT
from oxillama.server.models import Chosen
from oxillama.server.reading import Reading
from oxillama.server.turns import moved_tools, renamed

__all__ = ["COUNTED", "conversation", "prompt_of", "requires_calls", "template_options", "use_tools", "warn"]

COUNTED = 64  # contexts: what is longer than that many is refused where tokens are counted, too


def conversation(
    values: Mapping[str, Any], options: dict[str, Any], exchange: Exchange, chosen: Chosen
) -> list[dict[str, Any]]:
    """The messages of a request; what is said of tools and templates goes to `options`. Raises ApiError."""
    engine = chosen.model.ready.engine
    if engine.context.core.encoder or (engine.tokenizer.chat_template is None and not exchange.service.models.template):
        text = f"the model {chosen.name} has no chat template: it is not for conversations"
        raise bad_value("model", text, "unsupported_parameter")
    own = values.get("chat_template")
    if own is not None and not exchange.service.config.trust_request_templates:
        text = "chat_template is not taken from requests on this server (--trust-request-templates)"
        raise bad_value("chat_template", text, "unsupported_parameter")
    template = own or exchange.service.models.template
    if template is not None:
        options["chat_template"] = template

    def fault_of(kind: str, source: str) -> str:
        return engine.context.factory.fault(kind, source, options.get("cache_salt"))

    tools, names = as_functions(values, fault_of, exchange.reading)
    renamed(lambda: use_tools(tools.get("tools", []), tools.get("tool_choice"), options, exchange, fault_of), names)
    if "tools" in options and values.get("parallel_tool_calls") is False:
        options["parallel_tool_calls"] = False
    if exchange.service.reasoning is not None:
        options["reasoning"] = exchange.service.reasoning
    chat_template = template_for(engine.tokenizer, options.get("tools"), template)
    if options.get("tool_choice") != "none" and (note := note_of(chat_template, options)):
        warn(exchange, note)
    use_thinking(values, options, chat_template, exchange.reading)
    return plain_messages(values["messages"])


def prompt_of(values: Mapping[str, Any], exchange: Exchange, chosen: Chosen) -> list[int]:
    """Tokens of the prompt that fields of chat completions ask for, however many contexts they fill up to COUNTED.

    Raises ApiError, and what `chat_ids` raises.
    """
    messages, options = template_options(values, exchange, chosen)
    engine = chosen.model.ready.engine
    return chat_ids(engine.tokenizer, messages, options, COUNTED * engine.context_size)


def template_options(
    values: Mapping[str, Any], exchange: Exchange, chosen: Chosen
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages, and options of `PromptOptions`, that fields of chat completions ask for. Raises ApiError."""
    names = PromptOptions.__annotations__
    options = {f.to: values[f.name] for f in CHAT.fields if f.to in names and f.name in values}
    options["cache_salt"] = exchange.service.salt_of(exchange.key.name)  # of what is kept of its tools
    if moved := moved_tools(values):
        exchange.reading.names = moved
    messages = renamed(lambda: conversation(values, options, exchange, chosen), moved)
    given = {name: value for name, value in options.items() if name in names}
    if options.get("tool_choice") == "none":
        given.pop("tools", None)
    return messages, given


def use_thinking(values: Mapping[str, Any], options: dict[str, Any], template: ChatTemplate, reading: Reading) -> None:
    """Puts whether and how much the model is to think into `options`, as far as it goes. Raises ApiError.

    A template's own switch is set, if it has one. Without one, a model that writes reasoning has it ended at once where
    it isn't wanted, and thinks as it does where it is. An effort, or a budget, that the model knows nothing of is left
    out.
    """
    thinking, effort = values.get("thinking"), options.get("reasoning_effort")
    off = effort == "none" if thinking is None else thinking["type"] == "disabled"
    if off and options.get("reasoning_budget"):
        text = f"reasoning_budget is {options['reasoning_budget']}, and thinking is off: give one of them"
        raise bad_value("reasoning_budget", text)
    marks = options.get("reasoning", "auto")
    writes = isinstance(marks, ReasoningFormat) or ChatFormat.of_template(template).reasoning is not None
    if effort is not None and not takes_effort(template, effort):
        del options["reasoning_effort"]
        if effort != "none":
            reading.leave_out("reasoning_effort", "the chat template has no variable for it")
        elif thinking is None:
            thinking = {"type": "disabled"}
    if not writes and options.get("reasoning_budget") is not None:
        del options["reasoning_budget"]
        reading.leave_out("reasoning_budget", "the chat template has no reasoning")
    if thinking is not None:
        _use_switch(thinking, options, template, writes, reading)


def takes_effort(template: ChatTemplate, effort: str) -> bool:
    """Whether a template reads an effort, and doesn't refuse this one."""
    if not template.variables.intersection(EFFORT_VARIABLES):
        return False
    return not _refuses_effort(template.source, effort)


@lru_cache(maxsize=256)
def _refuses_effort(source: str, effort: str) -> bool:
    template, question = ChatTemplate(source), [{"role": "user", "content": "question"}]
    try:
        template.render(question)
    except ChatTemplateError:  # it needs more than a question: what is wrong is told of the request itself
        return False
    try:
        template.render(question, reasoning_effort=effort)
    except ChatTemplateError:
        return True
    return False


def _use_switch(
    thinking: Mapping[str, Any], options: dict[str, Any], template: ChatTemplate, writes: bool, reading: Reading
) -> None:
    """Lets the model think or not, by the template's own switch or without one. writes: whether it writes reasoning."""
    wanted = thinking["type"] != "disabled"
    try:
        switch = template.thinking(wanted)
    except TemplateVariableError:
        if not writes and thinking["type"] == "enabled":
            reading.leave_out("thinking", "the chat template has no reasoning")
        elif writes and not wanted:
            options["reasoning_budget"] = 0
    else:
        given = options.get("template_kwargs", {})
        for name, value in switch.items():
            if given.get(name, value) != value:
                text = (
                    f"thinking.type is {thinking['type']!r}, and chat_template_kwargs.{name} says otherwise: give one"
                )
                raise bad_value("thinking.type", text)
        options["template_kwargs"] = {**given, **switch}
    if "budget_tokens" in thinking and writes:
        if options.get("reasoning_budget", thinking["budget_tokens"]) != thinking["budget_tokens"]:
            raise bad_value("reasoning_budget", "reasoning_budget and thinking.budget_tokens are both given")
        options["reasoning_budget"] = thinking["budget_tokens"]


def use_tools(
    tools: list[dict[str, Any]], choice: Any, options: dict[str, Any], exchange: Exchange, fault_of: FaultOf
) -> None:
    """Puts the tools that may be called, and which must be, into `options`. Raises ApiError."""
    options.pop("tools", None)
    options.pop("tool_choice", None)
    if not tools:
        if choice not in (None, "none", "auto"):  # which ask for nothing then, as some clients have it
            raise bad_value("tool_choice", "tool_choice is given without tools that can be called: give tools too")
        return
    names = [tool["function"]["name"] for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise bad_value(
                f"tools[{i}].function.name", f"tools[{i}].function.name is that of an earlier tool: {name!r}"
            )
    wanted: Any = choice or "auto"
    allowed = names
    if isinstance(choice, Mapping):
        allowed, wanted = _chosen(choice)
    asked = [i for i, tool in enumerate(tools) if _is_asked(tool, wanted, allowed)]
    options["tools"] = [_holdable(tool, i in asked, f"tools[{i}]", fault_of) for i, tool in enumerate(tools)]
    is_named = isinstance(choice, Mapping) and choice["type"] == "function"
    if is_named and wanted in ("auto", "required", "none"):
        wanted = "required"
        options["parallel_tool_calls"] = False  # it is the name of a tool: one call of what is allowed
        options["tool_choice"] = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    elif isinstance(choice, Mapping) and choice["type"] == "allowed_tools":
        options["tool_choice"] = choice  # the model sees the others too, so that its prompt stays the same
    elif wanted != "auto":
        options["tool_choice"] = wanted
    if exchange.service.config.tool_format is not None and wanted != "none":
        options["tool_format"] = exchange.service.config.tool_format


def requires_calls(options: Mapping[str, Any]) -> bool:
    """Whether the answer is calls of tools and nothing else, by what `use_tools` put into `options`."""
    choice = options.get("tool_choice", "auto")
    if isinstance(choice, Mapping):
        choice = choice.get("allowed_tools", choice)["mode"]
    return choice not in ("auto", "none")


def _chosen(choice: Mapping[str, Any]) -> tuple[list[str], str]:
    """Names of the tools that a choice allows, and its word: a mode or a name."""
    if choice["type"] == "function":
        name = choice["function"]["name"]
        return [name], name
    return [one["function"]["name"] for one in choice["allowed_tools"]["tools"]], choice["allowed_tools"]["mode"]


def _is_asked(tool: Mapping[str, Any], wanted: str, allowed: list[str]) -> bool:
    """Whether arguments that can't be held to the schema are an error."""
    own = tool["function"]
    return (own["name"] in allowed and wanted not in ("auto", "none")) or bool(own.get("strict"))


def _holdable(tool: dict[str, Any], asked: bool, place: str, fault_of: FaultOf) -> dict[str, Any]:
    """The tool as templates print it. Raises ApiError if no grammar can hold its arguments and the request asks for
    that; else they are free, which `warned_of` says."""
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    if asked and "parameters" in function and (fault := fault_of("json_schema", json.dumps(function["parameters"]))):
        where = f"{place}.function.parameters"
        raise bad_value(where, f"{where}: {fault}", "invalid_json_schema")
    return {"type": "function", "function": function}


def warn(exchange: Exchange, text: str) -> None:
    """Says something in the header of warnings."""
    exchange.warnings.append(text)
