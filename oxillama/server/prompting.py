"""Conversations of requests: messages, tools and template options as `Engine.chat` takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from oxillama.chat import ChatTemplate
from oxillama.chat.format import ChatFormat
from oxillama.chat.shapes import ReasoningFormat
from oxillama.chat.tool_display import note_of
from oxillama.chat.variables import EFFORT_VARIABLES
from oxillama.core.answer_options import AnswerOptions
from oxillama.core.chat import chat_ids, template_for
from oxillama.core.options import PromptOptions
from oxillama.errors import ChatTemplateError, TemplateVariableError
from oxillama.server.custom import FaultOf, plain_messages, read_functions
from oxillama.server.errors import bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Item, Tool, Values
from oxillama.server.fields import CHAT
from oxillama.server.generation import Conversation
from oxillama.server.models import Chosen
from oxillama.server.reading import Reading
from oxillama.server.translate import read_moved_tools, renamed

__all__ = ["COUNTED", "prompt_of", "read_conversation", "read_prompt_of", "read_tools", "requires_calls", "warn"]

ToolChoice = str | Mapping[str, Any] | None
# The fields of chat completions that are options of the prompt, by their keywords, and those of the answer.
_PROMPT_FIELDS = {field.to: field.name for field in CHAT.fields if field.to in PromptOptions.__annotations__}
_ANSWER_FIELDS = ("reasoning_budget",)

COUNTED = 64  # contexts: what is longer than that many is refused where tokens are counted, too


class ToolsWanted(NamedTuple):
    """The tools of a request, as templates print them, and how they may be called; choice, parallel, format: of
    `PromptOptions` and `AnswerOptions`."""

    tools: list[Tool] | None = None
    choice: ToolChoice = None
    parallel: bool | None = None
    format: str | None = None


class Thinking(NamedTuple):
    """Amount of thinking that is wanted: variables of the template, an effort, and tokens at most."""

    variables: Mapping[str, Any] | None
    effort: str | None
    budget: int | None


def read_conversation(values: Values, exchange: Exchange, chosen: Chosen, salt: str | None) -> Conversation:
    """The messages of a request, with what it says of tools, templates and reasoning.

    salt: of what is kept of its tools. Raises ApiError.
    """
    engine, reading, marks = chosen.model.ready.engine, exchange.reading, exchange.service.reasoning
    source = read_template(values, exchange, chosen)

    def fault_of(kind: str, source: str) -> str:
        return engine.context.factory.fault(kind, source, salt)

    functions, names = read_functions(values, fault_of, reading)
    wanted = renamed(lambda: read_tools(functions, exchange.service.config.tool_format, fault_of), names)
    if wanted.tools is not None and values.get("parallel_tool_calls") is False:
        wanted = wanted._replace(parallel=False)
    template = template_for(engine.tokenizer, wanted.tools, source)
    prompt = _prompt_options(values, source, wanted)
    if wanted.choice != "none" and (note := note_of(template, prompt)):
        warn(exchange, note)
    thinking = read_thinking(values, "auto" if marks is None else marks, template, reading)
    answer = AnswerOptions(
        tools=wanted.tools, tool_choice=wanted.choice, tool_format=wanted.format,
        parallel_tool_calls=wanted.parallel, reasoning=marks, reasoning_budget=thinking.budget,
    )  # fmt: skip
    said: PromptOptions = {**prompt, "template_kwargs": thinking.variables, "reasoning_effort": thinking.effort}
    return Conversation(plain_messages(values["messages"]), said, answer)


def _prompt_options(values: Values, template: str | None, wanted: ToolsWanted) -> PromptOptions:
    """Options of a chat prompt beside its messages. Its tools are not shown where none may be called."""
    given = {keyword: values[name] for keyword, name in _PROMPT_FIELDS.items() if name in values}
    shown = None if wanted.choice == "none" else wanted.tools
    own = {"chat_template": template, "tools": shown, "tool_format": wanted.format}
    return cast("PromptOptions", given | {name: value for name, value in own.items() if value is not None})


def read_template(values: Values, exchange: Exchange, chosen: Chosen) -> str | None:
    """The template in place of the model's. Raises ApiError where there is none, or a request may not give one."""
    engine, own = chosen.model.ready.engine, exchange.service.models.template
    if engine.context.core.encoder or (engine.tokenizer.chat_template is None and not own):
        text = f"the model {chosen.name} has no chat template: it is not for conversations"
        raise bad_value("model", text, "unsupported_parameter")
    given: str | None = values.get("chat_template")
    if given is not None and not exchange.service.config.trust_request_templates:
        text = "chat_template is not taken from requests on this server (--trust-request-templates)"
        raise bad_value("chat_template", text, "unsupported_parameter")
    return given or own


def prompt_of(values: Values, exchange: Exchange, chosen: Chosen) -> list[int]:
    """Tokens of the prompt that fields of chat completions ask for, however many contexts they fill up to COUNTED.

    Raises ApiError, and what `chat_ids` raises.
    """
    found = read_prompt_of(values, exchange, chosen)
    engine = chosen.model.ready.engine
    return chat_ids(engine.tokenizer, found.messages, found.prompt, COUNTED * engine.context_size)


def read_prompt_of(values: Values, exchange: Exchange, chosen: Chosen) -> Conversation:
    """The conversation of a request whose prompt alone is wanted. Raises ApiError."""
    of_prompt = {name: value for name, value in values.items() if name not in _ANSWER_FIELDS}
    salt = exchange.service.salt_of(exchange.key.name)
    moved = read_moved_tools(values)
    if moved:
        exchange.reading.names = moved
    return renamed(lambda: read_conversation(of_prompt, exchange, chosen, salt), moved)


def read_thinking(values: Values, marks: ReasoningFormat | str, template: ChatTemplate, reading: Reading) -> Thinking:
    """Whether and how much the model is to think, as far as it goes. Raises ApiError.

    A template's own switch is set, if it has one. Without one, a model that writes reasoning has it ended at once where
    it isn't wanted, and thinks as it does where it is. An effort, or a budget, that the model knows nothing of is left
    out. marks: of reasoning, if the server names them.
    """
    thinking: Mapping[str, Any] | None = values.get("thinking")
    effort: str | None = values.get("reasoning_effort")
    budget: int | None = values.get("reasoning_budget")
    off = effort == "none" if thinking is None else thinking["type"] == "disabled"
    if off and budget:
        text = f"reasoning_budget is {budget}, and thinking is off: give one of them"
        raise bad_value("reasoning_budget", text)
    writes = isinstance(marks, ReasoningFormat) or ChatFormat.of_template(template).reasoning is not None
    taken = effort
    if effort is not None and not takes_effort(template, effort):
        taken = None
        if effort != "none":
            reading.leave_out("reasoning_effort", "the chat template has no variable for it")
        elif thinking is None:
            thinking = {"type": "disabled"}
    if not writes and budget is not None:
        budget = None
        reading.leave_out("reasoning_budget", "the chat template has no reasoning")
    found = Thinking(values.get("chat_template_kwargs"), taken, budget)
    return found if thinking is None else _switched(thinking, found, template, writes, reading)


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


def _switched(
    thinking: Mapping[str, Any], given: Thinking, template: ChatTemplate, writes: bool, reading: Reading
) -> Thinking:
    """Lets the model think or not, by the template's own switch or without one. writes: whether it writes reasoning."""
    wanted = thinking["type"] != "disabled"
    variables, budget = given.variables, given.budget
    try:
        switch = template.thinking(wanted)
    except TemplateVariableError:
        if not writes and thinking["type"] == "enabled":
            reading.leave_out("thinking", "the chat template has no reasoning")
        elif writes and not wanted:
            budget = 0
    else:
        own = variables or {}
        for name, value in switch.items():
            if own.get(name, value) != value:
                text = (
                    f"thinking.type is {thinking['type']!r}, and chat_template_kwargs.{name} says otherwise: give one"
                )
                raise bad_value("thinking.type", text)
        variables = {**own, **switch}
    if "budget_tokens" in thinking and writes:
        if budget not in (None, thinking["budget_tokens"]):
            raise bad_value("reasoning_budget", "reasoning_budget and thinking.budget_tokens are both given")
        budget = thinking["budget_tokens"]
    return Thinking(variables, given.effort, budget)


def read_tools(functions: Values, tool_format: str | None, fault_of: FaultOf) -> ToolsWanted:
    """The tools that may be called, and which must be. tool_format: the server's. Raises ApiError."""
    tools, choice = functions.get("tools", []), functions.get("tool_choice")
    if not tools:
        if choice not in (None, "none", "auto"):  # which ask for nothing then, as some clients have it
            raise bad_value("tool_choice", "tool_choice is given without tools that can be called: give tools too")
        return ToolsWanted()
    names = [tool["function"]["name"] for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise bad_value(
                f"tools[{i}].function.name", f"tools[{i}].function.name is that of an earlier tool: {name!r}"
            )
    allowed, wanted = _chosen(choice) if isinstance(choice, Mapping) else (names, choice or "auto")
    asked = [i for i, tool in enumerate(tools) if _is_asked(tool, wanted, allowed)]
    shown = [_holdable(tool, i in asked, f"tools[{i}]", fault_of) for i, tool in enumerate(tools)]
    parallel: bool | None = None
    given: ToolChoice = None if wanted == "auto" else wanted
    is_named = isinstance(choice, Mapping) and choice["type"] == "function"
    if is_named and wanted in ("auto", "required", "none"):
        wanted = "required"
        parallel = False  # it is the name of a tool: one call of what is allowed
        given = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    elif isinstance(choice, Mapping) and choice["type"] == "allowed_tools":
        given = choice  # the model sees the others too, so that its prompt stays the same
    return ToolsWanted(shown, given, parallel, None if wanted == "none" else tool_format)


def requires_calls(choice: ToolChoice) -> bool:
    """Whether the answer is calls of tools and nothing else, by a choice that `read_tools` gave."""
    if isinstance(choice, Mapping):
        choice = choice.get("allowed_tools", choice)["mode"]
    return choice not in (None, "auto", "none")


def _chosen(choice: Item) -> tuple[list[str], str]:
    """Names of the tools that a choice allows, and its word: a mode or a name."""
    if choice["type"] == "function":
        name = choice["function"]["name"]
        return [name], name
    return [one["function"]["name"] for one in choice["allowed_tools"]["tools"]], choice["allowed_tools"]["mode"]


def _is_asked(tool: Tool, wanted: str, allowed: list[str]) -> bool:
    """Whether arguments that can't be held to the schema are an error."""
    own = tool["function"]
    return (own["name"] in allowed and wanted not in ("auto", "none")) or bool(own.get("strict"))


def _holdable(tool: Tool, asked: bool, place: str, fault_of: FaultOf) -> Tool:
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
