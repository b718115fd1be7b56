"""Chat and infill prompts: the token ids of what `Engine.chat` and `Engine.infill` are given."""

from __future__ import annotations

from typing import Any

from oxillama.core.context import EngineContext
from oxillama.core.options import check_options
from oxillama.core.prompts import Messages, chat_ids, infill_ids
from oxillama.core.tool_use import tool_use_of
from oxillama.errors import ConfigError

__all__ = ["chat_prompt", "infill_prompt"]


def chat_prompt(context: EngineContext, messages: Messages, options: dict[str, Any]) -> list[int]:
    """The prompt of messages. In `options`, `tool_use` takes the place of the keywords that `chat` alone has.

    messages: as OpenAI's clients send them; content is text, or a list of text parts, {"type": "text", "text": …},
        which are joined with newlines unless the template prints parts (see `ChatTemplate.render`).
    stream: give chunks as they come.
    tools: functions that the model may call, each {"type": "function", "function": {"name": …, "parameters": schema}};
        its calls are in `tool_calls` of the result.
    chat_template: a Jinja template to use instead of the model's.
    tool_choice: "auto"; "required": it calls, and says nothing else; a tool's name: it calls that one, once; or "none":
        it doesn't see the tools, and all of its answer is text.
    tool_format: how it writes calls, if its template doesn't tell: "hermes", "qwen", "mistral", "mistral-args",
        "llama3", a `ToolFormat`, or "text": calls stay text.
    constrain_tools: False for calls that aren't held to the names and schemas of tools. With "auto" they aren't either
        where a grammar, schema, pattern or choices say what the whole text is.

    Other options are those of `generate` but `echo`.
    """
    check_options("chat", options)
    context.core.check_generates()
    if options.get("echo"):
        raise ConfigError("echo is not for chat(), whose prompt a template makes: chat_tokens() gives its tokens")
    tools, chat_template = options.pop("tools", None), options.pop("chat_template", None)
    choice, form, held = (options.pop(name, None) for name in ("tool_choice", "tool_format", "constrain_tools"))
    tokenizer = context.tokenizer
    ids = chat_ids(tokenizer, messages, None if choice == "none" else tools, chat_template, context.context_size)
    source = tokenizer.chat_template if chat_template is None else chat_template
    use = tool_use_of(source, messages, tools, choice, form, held)
    if use is not None and options.setdefault("tool_use", use) is not use:
        raise ConfigError("tool_use and tools are both given: chat() makes the one of the other")
    return ids


def infill_prompt(context: EngineContext, prefix: str, suffix: str, options: dict[str, Any]) -> list[int]:
    """The prompt for the text between two others. Takes the keyword that `infill` alone has out of `options`."""
    check_options("infill", options)
    if options.get("echo"):
        raise ConfigError("echo is not for infill(), whose text stands between two others")
    context.core.check_generates()
    suffix_first = options.pop("suffix_first", False)
    return infill_ids(context.tokenizer, prefix, suffix, suffix_first, context.context_size)
