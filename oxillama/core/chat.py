"""Chat and infill prompts: the token ids of what `Engine.chat` and `Engine.infill` are given."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from oxillama.chat.format import ChatFormat
from oxillama.core.context import EngineContext
from oxillama.core.options import check_options
from oxillama.core.prompts import Messages, Tools, chat_ids, infill_ids, template_of
from oxillama.core.tool_use import AnswerOptions, tool_use_of
from oxillama.errors import ChatTemplateError, ConfigError
from oxillama.tokenizer import ChatTemplate

__all__ = ["chat_prompt", "infill_prompt"]

_ANSWER_OPTIONS = tuple(field.name for field in fields(AnswerOptions))


def chat_prompt(context: EngineContext, messages: Messages, options: dict[str, Any]) -> list[int]:
    """The prompt of messages. In `options`, `tool_use` takes the place of the keywords that `chat` alone has.

    tools: functions that the model may call, each {"type": "function", "function": {"name": …, "parameters": schema}};
        its calls are in `tool_calls` of the result.
    chat_template: a Jinja template to use instead of the model's.
    tool_choice: "auto"; "required": it calls, and says nothing else; a tool's name: it calls that one, once; or "none":
        it doesn't see the tools, and all of its answer is text. Of the objects of OpenAI's clients, `function` names
        one tool, and `allowed_tools` lists those that it may call.
    tool_format: how it writes calls, if its template doesn't tell: "hermes", "qwen", "mistral", "mistral-args",
        "llama3", a `ToolFormat` or `ChatFormat`, or "text": calls stay text.
    constrain_tools: False for calls that aren't held to the names and schemas of tools. With "auto" they aren't either
        where a grammar, schema, pattern or choices say what the whole text is.
    parallel_tool_calls: False for one call at most where calls are held to the tools.
    reasoning: "auto": what the model thinks before its answer is in `reasoning` of the result, and not in its text;
        "none": it stays in the text; a `ReasoningFormat`: the marks around it, if the template doesn't tell. Grammars,
        schemas and required calls hold for what follows it.
    reasoning_budget: so many tokens of reasoning at most; then its end is written in the model's place.

    Other options are those of `generate` but `echo`.
    """
    check_options("chat", options)
    context.core.check_generates()
    if options.get("echo"):
        raise ConfigError("echo is not for chat(), whose prompt a template makes: chat_tokens() gives its tokens")
    chat_template = options.pop("chat_template", None)
    given = AnswerOptions(**{name: options.pop(name) for name in _ANSWER_OPTIONS if name in options})
    tokenizer, tools = context.tokenizer, None if given.tool_choice == "none" else given.tools
    ids = chat_ids(tokenizer, messages, tools, chat_template, context.context_size)
    template = template_of(tokenizer, chat_template)
    use = tool_use_of(
        lambda: ChatFormat.of_template(template), generation_prompt(template, messages, tools), messages, given
    )
    if use is not None and options.setdefault("tool_use", use) is not use:
        raise ConfigError("tool_use and tools are both given: chat() makes the one of the other")
    return ids


def generation_prompt(template: ChatTemplate, messages: Messages, tools: Tools) -> str:
    """What a template adds behind the messages for the answer, which may open its reasoning."""
    whole = template.render(messages, tools=tools)
    try:
        before = template.render(messages, tools=tools, add_generation_prompt=False)
    except ChatTemplateError:
        return ""
    return whole[len(before) :] if whole.startswith(before) else ""


def infill_prompt(context: EngineContext, prefix: str, suffix: str, options: dict[str, Any]) -> list[int]:
    """The prompt for the text between two others. Takes the keyword that `infill` alone has out of `options`."""
    check_options("infill", options)
    if options.get("echo"):
        raise ConfigError("echo is not for infill(), whose text stands between two others")
    context.core.check_generates()
    suffix_first = options.pop("suffix_first", False)
    return infill_ids(context.tokenizer, prefix, suffix, suffix_first, context.context_size)
